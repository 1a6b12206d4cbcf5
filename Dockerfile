# nsqd and nsqlookupd without Spark. docs/container.md tells how to run it.
#
#   docker build -t pyspark-nsq .
#   docker run -p 4150:4150 -p 4151:4151 -v nsq-data:/data pyspark-nsq nsqd
#   docker build -t pyspark-nsq-notebooks --target notebooks .
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
# With --build-arg COMPILED=true nsqd's hot path becomes machine code (docs/broker.md). Debian's Python has no headers.
ARG COMPILED=false
RUN [ "$COMPILED" != true ] || { apt-get update -q \
    && apt-get install -y -q --no-install-recommends gcc libc6-dev \
        $(python3 -c 'import os, sysconfig as s; os.path.exists(s.get_path("include") + "/Python.h") or print("python3-dev")') \
    && rm -rf /var/lib/apt/lists/*; }
WORKDIR /build
RUN python3 -m venv /opt/nsq
# Dependencies first: they change less often than the code. With them comes a pip that can pin what a build needs.
COPY constraints.txt ./
RUN /opt/nsq/bin/python -m pip install --no-cache-dir --disable-pip-version-check -q \
        $(grep -E '^(pip|numpy|cramjam|isal|gevent|greenlet|zope\.event|zope\.interface)==' constraints.txt)
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY broker broker
COPY connector connector
COPY proto proto
COPY tools/compile_broker.py tools/
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=$COMPILED /opt/nsq/bin/python -m pip install --no-cache-dir --disable-pip-version-check -q \
        -c constraints.txt --build-constraint constraints.txt '.[broker,fast]' \
    && /opt/nsq/bin/python -m pip uninstall -q -y pip setuptools \
    # Tests, headers and sources for C compilers: half of the size.
    && find /opt/nsq -type d \( -name tests -o -name testing -o -name f2py -o -name include \) \
        -path '*/site-packages/[gn]*' -prune -exec rm -rf {} + \
    && find /opt/nsq -name '*.py[xcd]' -not -name '*.pyc' -delete

FROM ${BASE_IMAGE} AS notebooks
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home nsq && python3 -m venv /opt/nsq
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY broker broker
COPY connector connector
COPY proto proto
# A pip as old as Debian's cannot do with constraints what this needs.
RUN /opt/nsq/bin/python -m pip install --no-cache-dir --disable-pip-version-check -q $(grep '^pip==' constraints.txt) \
    && /opt/nsq/bin/python -m pip install --no-cache-dir --disable-pip-version-check -q \
        -c constraints.txt --build-constraint constraints.txt '.[notebook]'
WORKDIR /home/nsq/notebooks
COPY --chown=10001 notebooks ./
USER 10001
ENV PATH=/opt/nsq/bin:$PATH PYSPARK_PYTHON=/opt/nsq/bin/python
EXPOSE 8888
CMD ["jupyter", "lab", "--no-browser", "--ip=0.0.0.0"]

FROM ${BASE_IMAGE} AS broker
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin nsq && install -d -o 10001 -g 10001 /data
COPY --from=build /opt/nsq /opt/nsq
USER 10001
ENV PATH=/opt/nsq/bin:$PATH PYTHONDONTWRITEBYTECODE=1
WORKDIR /data
VOLUME /data
# nsqd: TCP, HTTP, HTTPS. nsqlookupd: TCP, HTTP.
EXPOSE 4150 4151 4152 4160 4161
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s --retries=3 CMD ["python", "-m", "pyspark_nsq.container", "health"]
ENTRYPOINT ["python", "-m", "pyspark_nsq.container"]
CMD ["nsqd"]
