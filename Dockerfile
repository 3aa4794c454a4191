# Server and worker in one image: docs/workers.md. For an image that is the same tomorrow, pin the
# base by what `docker buildx imagetools inspect python:3.13-slim` prints (python:3.13-slim@sha256:…)
# and the packages by a file that `pip freeze` wrote in a first image (`pip install --constraint`).
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY contracts contracts
COPY rules rules
COPY storage storage
COPY tools tools
COPY server server
RUN python -m venv /opt/forbear \
 && /opt/forbear/bin/pip install --no-cache-dir '.[postgresql,otel]'

FROM ${PYTHON}
COPY --from=build /opt/forbear /opt/forbear
# Numbers, so that Kubernetes can see that it is not root; a name, because decisions are signed.
RUN useradd --uid 10001 --user-group --home-dir /var/lib/forbear --no-create-home forbear \
 && install -d -m 0700 -o 10001 -g 10001 /var/lib/forbear
ENV PATH=/opt/forbear/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FORBEAR_HOME=/var/lib/forbear
USER 10001:10001
# The only place that is written: the root file system can be read-only.
VOLUME /var/lib/forbear
# Home, store, keys and contracts; that the process itself lives is what the runtime watches.
HEALTHCHECK --interval=60s --timeout=30s --start-period=60s CMD ["forbear", "doctor"]
ENTRYPOINT ["forbear"]
CMD ["worker"]
