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

// Files are a certified device identity as SPIRE's agent reads it.
type Files struct {
	// Device is the path of the TPM.
	Device string
	// Certificate is the path of the certificate chain in PEM, Private and Public those of
	// the key's blobs.
	Certificate, Private, Public string
}

// Write writes the files, for their owner alone, into a folder that exists.
func (k *Key) Write(dir, device, chain string) (Files, error) {
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

// Plugin is the agent's configuration of node attestor tpm_devid, in HCL (SPIRE's
// doc/plugin_agent_nodeattestor_tpm_devid.md).
func (f Files) Plugin() string {
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
