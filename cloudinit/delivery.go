// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Paths of the delivered files in the machine.
const (
	// UnitPath is the path of the bootstrap service's unit file.
	UnitPath = "/etc/systemd/system/" + guest.ServiceUnit

	deliverScript = "/opt/hyperfleet/deliver.sh"
	deliverCA     = "/opt/hyperfleet/deliver-ca.pem"
)

// Unit returns the bootstrap service's unit file. The unit is not enabled at boot. cloud-init starts it after
// it has written the configuration.
func Unit() string {
	return `[Unit]
Description=HyperFleet bootstrap service
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=` + guest.ServicePath + ` --config ` + guest.ConfigPath + `
Restart=no
KillMode=mixed
TimeoutStopSec=60
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
`
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// buildDelivery returns the files and commands that install the bootstrap service in the machine. It returns
// nothing if the service is in the image.
func buildDelivery(in *Input, overrides userOverrides) (files []writeFile, commands [][]string, err error) {
	if in.Config == nil {
		return nil, nil, nil
	}

	var fetch string

	switch in.Delivery.Method {
	case "", v1alpha1.DeliveryImage:
		return nil, nil, nil
	case v1alpha1.DeliveryDownload:
		if err := validateURL(in.Delivery.URL); err != nil {
			return nil, nil, err
		}

		fetch = buildDownload(in.Delivery)
	case v1alpha1.DeliveryISO:
		fetch = buildISOCopy()
	default:
		return nil, nil, fmt.Errorf("bootstrap.delivery: %q: must be image, download or iso", in.Delivery.Method)
	}

	sums, err := formatChecksums(in.Delivery)
	if err != nil {
		return nil, nil, err
	}

	if !overrides.hasService {
		files = append(files, writeFile{deliverScript, buildInstallScript(sums, fetch), rootOwner, programMode})
		if in.Delivery.CABundle != "" {
			files = append(files, writeFile{deliverCA, in.Delivery.CABundle, rootOwner, unitMode})
		}

		commands = append(commands, []string{deliverScript})
	}

	if !overrides.hasUnit {
		files = append(files, writeFile{UnitPath, Unit(), rootOwner, unitMode})
		commands = append(commands, []string{"systemctl", "daemon-reload"})
	}

	return files, commands, nil
}

func validateURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(text, "'\n\\ ") {
		return fmt.Errorf("bootstrap.delivery download: %q is not the URL of a server: "+
			"set an address of the operator that machines can reach", text)
	}

	return nil
}

// formatChecksums returns the branches of a shell case statement that set $sum for each architecture.
func formatChecksums(d Delivery) (string, error) {
	if len(d.SHA256) == 0 {
		return "", errors.New("bootstrap.delivery: no SHA-256 of the bootstrap service is given: " +
			"set one, because the machine only runs a verified program")
	}

	var b strings.Builder

	for _, arch := range slices.Sorted(maps.Keys(d.SHA256)) {
		sum := d.SHA256[arch]
		if !sha256Pattern.MatchString(sum) || strings.Trim(arch, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return "", fmt.Errorf("bootstrap.delivery: SHA-256 %q for architecture %q: must be 64 hexadecimal digits", sum, arch)
		}

		fmt.Fprintf(&b, "  %s) sum=%s ;;\n", arch, strings.ToLower(sum))
	}

	return b.String(), nil
}

// buildInstallScript returns the script that runs fetch, verifies the program that fetch has written to $new,
// and installs it.
func buildInstallScript(sums, fetch string) string {
	return `#!/bin/sh
# Installs the bootstrap service if its SHA-256 is the expected one.
set -eu
umask 077
target=` + guest.ServicePath + `
arch=$(uname -m)
case "$arch" in
` + sums + `  *) echo "hyperfleet: no bootstrap service for architecture $arch" >&2; exit 1 ;;
esac
mkdir -p "${target%/*}"
new="$target.new"
trap 'rm -f "$new"' EXIT
` + fetch + `
if ! echo "$sum  $new" | sha256sum -c - >/dev/null 2>&1; then
  echo "hyperfleet: the SHA-256 of the bootstrap service is not the expected one, the service is not installed" >&2
  exit 1
fi
chmod 0755 "$new"
mv -f "$new" "$target"
`
}

// buildDownload returns the part of the script that downloads the program with curl or wget. It makes at most
// five attempts, and verifies the server with the CA bundle if one is set.
func buildDownload(d Delivery) string {
	curlCA, wgetCA := "", ""
	if d.CABundle != "" {
		curlCA, wgetCA = "--cacert "+deliverCA+" ", "--ca-certificate="+deliverCA+" "
	}

	return `url='` + strings.TrimSuffix(d.URL, "/") + `/bootstrap/'"$arch"
fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl -fsSL --connect-timeout 10 --max-time 300 ` + curlCA + `-o "$new" "$url"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -T 30 -t 1 ` + wgetCA + `-O "$new" "$url"
  else
    echo "hyperfleet: the machine's template contains neither curl nor wget" >&2
    exit 1
  fi
}
tries=0
until fetch; do
  tries=$((tries + 1))
  if [ "$tries" -ge 5 ]; then
    echo "hyperfleet: cannot download the bootstrap service from $url" >&2
    exit 1
  fi
  sleep "$tries"
done`
}

// buildISOCopy returns the part of the script that mounts the cloud-init ISO read-only and copies the program
// from it.
func buildISOCopy() string {
	return `medium=$(mktemp -d)
trap 'rm -f "$new"; umount "$medium" 2>/dev/null || true; rmdir "$medium" 2>/dev/null || true' EXIT
mount -t iso9660 -o ro LABEL=` + VolumeLabel + ` "$medium"
cp "$medium/` + BootstrapServiceFile + `" "$new"`
}
