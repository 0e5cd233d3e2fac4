#!/bin/bash
set -euo pipefail
umask 077

main() { '/usr/local/libexec/hyperfleet/vmnat'; }

main; exit 0
