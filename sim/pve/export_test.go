// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// MakeISO gives tests access to buildISO.
func MakeISO(label string, files map[string][]byte) ([]byte, error) { return buildISO(label, files) }

// ReadISO returns the label and the files of an ISO image.
func ReadISO(data []byte) (string, map[string][]byte, error) {
	img, err := readISO(data)
	if err != nil {
		return "", nil, err
	}
	return img.label, img.files, nil
}

// ParseUserData returns the host name and the files of user data, by path.
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

// Privileges returns the privileges of a version.
func Privileges(version string) []string { return listPrivileges(version) }

// VMSpec returns the machine that a configuration describes.
func VMSpec(conf map[string]string, q QEMU) (*vm.Spec, error) {
	return newVMSpec(&machine{id: 1, conf: conf}, q)
}

// Routes returns the method and the path of all calls that the simulator implements.
func Routes() [][2]string {
	var out [][2]string
	for _, r := range allRoutes() {
		out = append(out, [2]string{r.method, "/" + strings.Join(r.pattern, "/")})
	}
	return out
}
