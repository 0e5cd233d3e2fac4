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

// Where delivery keeps its parts in the machine.
const (
	// UnitPath is where the bootstrap service's unit file belongs.
	UnitPath = "/etc/systemd/system/" + guest.ServiceUnit

	deliverScript = "/opt/hyperfleet/deliver.sh"
	deliverCA     = "/opt/hyperfleet/deliver-ca.pem"
)

// Unit is the bootstrap service's unit file. It is not enabled at boot: cloud-init
// starts it once its configuration is there.
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

var sha256Hex = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// deliver is what brings the bootstrap service into the machine.
func deliver(in *Input, taken userOverrides) ([]writeFile, [][]string, error) {
	if in.Config == nil {
		return nil, nil, nil
	}

	var fetch string

	switch in.Delivery.Method {
	case "", v1alpha1.DeliveryImage:
		return nil, nil, nil
	case v1alpha1.DeliveryDownload:
		if err := checkURL(in.Delivery.URL); err != nil {
			return nil, nil, err
		}

		fetch = fetchByDownload(in.Delivery)
	case v1alpha1.DeliveryISO:
		fetch = fetchFromISO()
	default:
		return nil, nil, fmt.Errorf("bootstrap.delivery: %q: must be image, download or iso", in.Delivery.Method)
	}

	sums, err := checksums(in.Delivery)
	if err != nil {
		return nil, nil, err
	}

	var (
		files    []writeFile
		commands [][]string
	)

	if !taken.service {
		files = append(files, writeFile{deliverScript, script(sums, fetch), rootOwner, programMode})
		if in.Delivery.CABundle != "" {
			files = append(files, writeFile{deliverCA, in.Delivery.CABundle, rootOwner, unitMode})
		}

		commands = append(commands, []string{deliverScript})
	}

	if !taken.unit {
		files = append(files, writeFile{UnitPath, Unit(), rootOwner, unitMode})
		commands = append(commands, []string{"systemctl", "daemon-reload"})
	}

	return files, commands, nil
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(text, "'\n\\ ") {
		return fmt.Errorf("bootstrap.delivery download: %q is not the URL of a server: "+
			"set the operator's address that machines can reach", text)
	}

	return nil
}

// checksums writes the shell's case branches that set $sum by architecture.
func checksums(d Delivery) (string, error) {
	if len(d.SHA256) == 0 {
		return "", errors.New("bootstrap.delivery: no SHA-256 of the bootstrap service is given: " +
			"without one nothing is run in the machine")
	}

	var b strings.Builder

	for _, arch := range slices.Sorted(maps.Keys(d.SHA256)) {
		sum := d.SHA256[arch]
		if !sha256Hex.MatchString(sum) || strings.Trim(arch, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return "", fmt.Errorf("bootstrap.delivery: SHA-256 %q for architecture %q: must be 64 hexadecimal digits", sum, arch)
		}

		fmt.Fprintf(&b, "  %s) sum=%s ;;\n", arch, strings.ToLower(sum))
	}

	return b.String(), nil
}

// script verifies what fetch put into $new and installs it.
func script(sums, fetch string) string {
	return `#!/bin/sh
# Installs the bootstrap service after checking what it is.
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
  echo "hyperfleet: the bootstrap service has another SHA-256 than expected, it is not run" >&2
  exit 1
fi
chmod 0755 "$new"
mv -f "$new" "$target"
`
}

// fetchByDownload tries curl and wget, five times. The CA bundle is used if it is there.
func fetchByDownload(d Delivery) string {
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
    echo "hyperfleet: neither curl nor wget is in the machine's template" >&2
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

// fetchFromISO copies the program from the cloud-init ISO, mounted read-only.
func fetchFromISO() string {
	return `medium=$(mktemp -d)
trap 'rm -f "$new"; umount "$medium" 2>/dev/null || true; rmdir "$medium" 2>/dev/null || true' EXIT
mount -t iso9660 -o ro LABEL=` + VolumeLabel + ` "$medium"
cp "$medium/` + BootstrapServiceFile + `" "$new"`
}
