// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

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
	cc, err := parseUserData(data)
	if err != nil {
		return "", nil, nil, err
	}
	files, modes = map[string]string{}, map[string]uint32{}
	for _, f := range cc.files {
		files[f.path], modes[f.path] = string(f.data), f.mode
	}
	return cc.hostname, files, modes, nil
}

// FingerprintOf is the fingerprint of a DER certificate.
func FingerprintOf(der []byte) string { return fingerprintOf(der) }

// Privileges are those a version knows.
func Privileges(version string) []string { return privilegesOf(version) }
