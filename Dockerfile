# One image for every role: `docker run … spillway api`, `relay`, `worker`, `janitor`, `migrate`, `token`.
# It holds the core alone, no local servers, no bench, no tests; a role is chosen by the command.

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
COPY requirements-core.lock deploy/requirements-build.lock ./
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1 PIP_REQUIRE_HASHES=1 PIP_ROOT_USER_ACTION=ignore
# pyvips has no wheel and is built here, with locked tools: without isolation, which would fetch others. The finished
# environment is checked and then left without an installer.
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --only-binary=:all: --requirement requirements-build.lock \
    && /opt/venv/bin/pip install --only-binary=:all: --no-binary=pyvips --no-build-isolation \
        --requirement requirements-core.lock \
    && /opt/venv/bin/pip check \
    && /opt/venv/bin/pip uninstall --yes --quiet pkgconfig setuptools pip
COPY contracts /opt/spillway/contracts
COPY app /opt/spillway/app
COPY worker /opt/spillway/worker
COPY migrations /opt/spillway/migrations
COPY stack /opt/spillway/stack
# Compiled here, since containers run on a read-only file system.
RUN /opt/venv/bin/python -m compileall -q /opt/spillway

FROM python:3.11.14-slim-bookworm
RUN groupadd --system --gid 10001 spillway \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
        spillway
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/spillway /opt/spillway
COPY deploy/spillway.py /usr/local/bin/spillway
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/spillway \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /opt/spillway
# api, and /metrics with /health/live of the others (both set in compose.yaml)
EXPOSE 8080 9100
STOPSIGNAL SIGTERM
ENTRYPOINT ["spillway"]
CMD ["--help"]
