#!/bin/bash
set -euo pipefail
umask 077
DOMAIN='/Library/Preferences/com.apple.SoftwareUpdate'
KEYS='AutomaticDownload AutomaticallyInstallMacOSUpdates CriticalUpdateInstall SplatEnabled'

main() {
	local key
	for key in $KEYS; do
		defaults write "$DOMAIN" "$key" -bool false
	done
}

main; exit 0
