// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
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

// mayStart says whether the bootstrap service may start as soon as write_files has run:
// nothing of the user's data comes later, and the service itself is in the image.
func mayStart(in *Input, root *yaml.Node) bool {
	if in.Config == nil || in.Delivery.Method != "" && in.Delivery.Method != v1alpha1.DeliveryImage {
		return false
	}

	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "bootcmd", "hostname", "fqdn": // before write_files, or of no matter
		case "write_files":
			for _, entry := range resolve(root.Content[i+1]).Content {
				if lookup(resolve(entry), "defer") != nil {
					return false
				}
			}
		default:
			return false
		}
	}

	return true
}

// runtimeConfig is the operator's part, without what the template has taken over. early
// tells the image that the service may start.
func runtimeConfig(in *Input, taken userOverrides, early bool) (*yaml.Node, error) {
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

	if early { // the last of all files
		part.WriteFiles = append(part.WriteFiles, writeFile{guest.StartPath, "", rootOwner, unitMode})
	}

	if in.Config != nil && !taken.start {
		part.RunCmd = append(part.RunCmd, []string{"systemctl", "start", "--no-block", guest.ServiceUnit})
	}

	return toNode(part)
}
