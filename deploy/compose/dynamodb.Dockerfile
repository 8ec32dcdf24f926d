# A DynamoDB to try things out with: dynoxide (MIT or Apache-2.0), from its npm package, which has one static program.
# Amazon's own DynamoDB Local has a licence of Amazon's, and is not used here.
ARG NODE=node:22-slim
ARG BASE=debian:stable-slim

FROM ${NODE} AS fetch
WORKDIR /fetched
RUN npm install --no-save --no-package-lock --no-audit --no-fund @dynoxide/linux-x64@1.2.1

FROM ${BASE}
COPY --from=fetch /fetched/node_modules/@dynoxide/linux-x64/dynoxide /usr/local/bin/dynoxide
# A volume that is new takes over the owner of the folder that it is mounted on.
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/dynoxide
VOLUME /var/lib/dynoxide
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=2s --timeout=5s --retries=30 CMD ["dynoxide", "healthcheck", "--port", "8000"]
ENTRYPOINT ["dynoxide"]
CMD ["--host", "0.0.0.0", "--port", "8000", "--db-path", "/var/lib/dynoxide/dynamodb.db"]
