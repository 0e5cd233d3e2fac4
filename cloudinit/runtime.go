// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// writeFile is an entry of cloud-config's write_files.
type writeFile struct {
	Path        string `yaml:"path"`
	Content     string `yaml:"content"`
	Owner       string `yaml:"owner"`
	Permissions string `yaml:"permissions"`
}

// cloudConfigPart is what the operator adds to a cloud-config.
type cloudConfigPart struct {
	Hostname   string      `yaml:"hostname"`
	FQDN       string      `yaml:"fqdn,omitempty"`
	BootCmd    [][]string  `yaml:"bootcmd,omitempty"`
	WriteFiles []writeFile `yaml:"write_files,omitempty"`
	RunCmd     [][]string  `yaml:"runcmd,omitempty"`
}

// Owner and permissions of what the operator writes.
const (
	rootOwner   = "root:root"
	secretMode  = "0600"
	unitMode    = "0644"
	programMode = "0700"
)

// runtimeConfig is the operator's part, without what the template has taken over.
func runtimeConfig(in *Input, taken takenOver) (*yaml.Node, error) {
	part := cloudConfigPart{Hostname: in.Hostname, FQDN: in.FQDN}

	if in.Config != nil && !taken.config {
		content, err := json.MarshalIndent(in.Config, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", guest.ConfigPath, err)
		}

		part.WriteFiles = append(part.WriteFiles, writeFile{guest.ConfigPath, string(content) + "\n", rootOwner, secretMode})
	}

	boot, err := dhcpDropIn(in)
	if err != nil {
		return nil, err
	}

	part.BootCmd = boot

	files, commands, err := deliver(in, taken)
	if err != nil {
		return nil, err
	}

	part.WriteFiles = append(part.WriteFiles, files...)
	part.RunCmd = append(part.RunCmd, commands...)

	if in.Config != nil && !taken.start {
		part.RunCmd = append(part.RunCmd, []string{"systemctl", "start", "--no-block", guest.ServiceUnit})
	}

	return toNode(part)
}
