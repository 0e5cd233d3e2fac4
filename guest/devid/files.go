// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Files holds the paths of the files of a certified device identity that SPIRE's agent reads.
type Files struct {
	// Device is the path of the TPM.
	Device string
	// Certificate is the path of the certificate chain in PEM. Private and Public are the paths of the key's
	// blobs.
	Certificate, Private, Public string
}

// WriteFiles writes the files to an existing directory. Only their owner can read them. device is the path of
// the TPM.
func (k *Key) WriteFiles(dir, device, chain string) (Files, error) {
	const ownerOnly = 0o600

	files := Files{
		Device:      device,
		Certificate: filepath.Join(dir, "devid.crt.pem"),
		Private:     filepath.Join(dir, "devid.priv.blob"),
		Public:      filepath.Join(dir, "devid.pub.blob"),
	}

	for path, data := range map[string][]byte{
		files.Certificate: []byte(chain), files.Private: k.Private, files.Public: k.Public,
	} {
		if err := os.WriteFile(path, data, ownerOnly); err != nil {
			return Files{}, fmt.Errorf("write device identity: %w", err)
		}
	}

	return files, nil
}

// NodeAttestor returns the agent's configuration of node attestor tpm_devid in HCL (SPIRE's
// doc/plugin_agent_nodeattestor_tpm_devid.md).
func (f Files) NodeAttestor() string {
	var out strings.Builder

	out.WriteString("NodeAttestor \"tpm_devid\" {\n\tplugin_data {\n")

	for _, setting := range [][2]string{
		{"tpm_device_path", f.Device}, {"devid_cert_path", f.Certificate},
		{"devid_priv_path", f.Private}, {"devid_pub_path", f.Public},
	} {
		fmt.Fprintf(&out, "\t\t%s = %s\n", setting[0], strconv.Quote(setting[1]))
	}

	out.WriteString("\t}\n}\n")

	return out.String()
}
