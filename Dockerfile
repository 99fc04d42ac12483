# The command in an image of its own, with Open MPI for several processes:
#   docker build -t phalanx .
#   docker run --rm phalanx train
#   docker run --rm phalanx launch -n 2 -- train
# Files of the host are seen with: docker run --rm -v "$PWD:/work" phalanx train --data book.txt --save out
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
# The clone's history is not copied (.dockerignore): name the commit with --build-arg COMMIT=$(git rev-parse HEAD).
ARG COMMIT=
ENV PHALANX_COMMIT=$COMMIT
RUN cargo install --path crates/cli --locked --root /usr/local

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends openmpi-bin openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local/bin/phalanx /usr/local/bin/phalanx
WORKDIR /work
ENTRYPOINT ["phalanx"]
CMD ["--help"]
