# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Logs the user LOGIN in at the console, now and after each start. macOS gives the keys of
# machines with macOS to processes of that session alone. What is read is the password.
temp=
# A character is a byte.
LC_ALL=C

owner() { stat -f %Su /dev/console; }

# encoded prints what loginwindow reads: the password and a NUL, filled up to twelves, under a
# key that all Macs have.
encoded() {
	local key=(0x7d 0x89 0x52 0x23 0xd2 0xbc 0xdd 0xea 0xa3 0xb9 0x1f) text=$1 i code
	for ((i = 0; i < ${#text} / 12 * 12 + 12; i++)); do
		code=0
		if [ "$i" -lt "${#text}" ]; then printf -v code %d "'${text:i:1}"; fi
		printf -v code %02x "$(((code & 255) ^ key[i % 11]))"
		printf %b "\\x$code"
	done
}

keep() {
	local password end
	IFS= read -r password || true
	IFS= read -r end || true
	if [ "$end" != "$END" ]; then
		echo "what arrived for /etc/kcpassword was cut short: push it again" >&2
		exit 1
	fi

	temp=$(mktemp /etc/.hyperfleet.XXXXXX)
	trap 'rm -f "$temp"' EXIT
	encoded "$password" >"$temp"
	chown root:wheel "$temp"
	chmod 600 "$temp"
	mv -f "$temp" /etc/kcpassword
}

main() {
	local i
	if fdesetup status </dev/null | grep -q 'FileVault is On'; then
		echo "FileVault is on, and macOS logs nobody in by itself: turn it off with fdesetup disable" >&2
		exit 1
	fi

	keep
	defaults write /Library/Preferences/com.apple.loginwindow autoLoginUser -string "$LOGIN"
	# Whoever is logged in already may have machines that run.
	if [ "$(owner)" = "$LOGIN" ]; then return; fi

	killall -HUP loginwindow
	for ((i = 0; i < 60; i++)); do
		if [ "$(owner)" = "$LOGIN" ]; then return; fi
		sleep 1
	done
	echo "$LOGIN is not logged in at the console after a minute: look whether this is the user's password, and restart the host" >&2
	exit 1
}
