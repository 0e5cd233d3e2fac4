// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// MakeISO, ReadISO and ParseUserData open internals to tests.
func MakeISO(label string, files map[string][]byte) ([]byte, error) { return makeISO(label, files) }

// ReadISO reads label and files.
func ReadISO(data []byte) (string, map[string][]byte, error) {
	img, err := readISO(data)
	if err != nil {
		return "", nil, err
	}
	return img.label, img.files, nil
}

// ParseUserData gives the files user data writes, by path, and the host name.
func ParseUserData(data []byte) (host string, files map[string]string, modes map[string]uint32, err error) {
	parsed, err := execguest.ParseUserData(data)
	if err != nil {
		return "", nil, nil, err
	}
	files, modes = map[string]string{}, map[string]uint32{}
	for path, f := range parsed.Files {
		files[path], modes[path] = string(f.Data), f.Mode
	}
	return parsed.Hostname, files, modes, nil
}

// Privileges are those a version knows.
func Privileges(version string) []string { return privilegesOf(version) }

// VMSpec is the machine that a configuration describes.
func VMSpec(conf map[string]string, q QEMU) (*vm.Spec, error) {
	return vmSpec(&machine{id: 1, conf: conf}, q)
}

// Routes are all calls the simulator answers, as METHOD and path.
func Routes() [][2]string {
	var out [][2]string
	for _, r := range allRoutes() {
		out = append(out, [2]string{r.method, "/" + strings.Join(r.pattern, "/")})
	}
	return out
}
