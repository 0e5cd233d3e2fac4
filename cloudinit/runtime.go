// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// writeFile is an entry of write_files in a cloud-config.
type writeFile struct {
	Path        string `yaml:"path"`
	Content     string `yaml:"content"`
	Owner       string `yaml:"owner"`
	Permissions string `yaml:"permissions"`
}

// cloudConfigPart contains the fields that the operator adds to a cloud-config.
type cloudConfigPart struct {
	Hostname   string      `yaml:"hostname"`
	FQDN       string      `yaml:"fqdn,omitempty"`
	BootCmd    [][]string  `yaml:"bootcmd,omitempty"`
	WriteFiles []writeFile `yaml:"write_files,omitempty"`
	RunCmd     [][]string  `yaml:"runcmd,omitempty"`
}

// Owner and permissions of the files that the operator adds.
const (
	rootOwner   = "root:root"
	secretMode  = "0600"
	unitMode    = "0644"
	programMode = "0700"
)

// canStartEarly returns whether the bootstrap service can start as soon as write_files has run. This is the
// case if cloud-init handles none of the user's data later, and the service is in the image.
func canStartEarly(in *Input, root *yaml.Node) bool {
	if in.Config == nil || in.Delivery.Method != "" && in.Delivery.Method != v1alpha1.DeliveryImage {
		return false
	}

	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "bootcmd", "hostname", "fqdn": // these run before write_files or do not affect the service
		case "write_files":
			for _, entry := range root.Content[i+1].Content {
				if strictyaml.Lookup(entry, "defer") != nil {
					return false
				}
			}
		default:
			return false
		}
	}

	return true
}

// startLast is the value of startEarly with which the service starts at the end of cloud-init.
const startLast = false

// buildOperatorConfig returns the operator's part of the cloud-config, without the parts that the template
// overrides. If startEarly is true, the part has a file that starts the service before the end of cloud-init.
func buildOperatorConfig(in *Input, overrides userOverrides, startEarly bool) (*yaml.Node, error) {
	part := cloudConfigPart{Hostname: in.Hostname, FQDN: in.FQDN}

	if in.Config != nil && !overrides.hasConfig {
		content, err := json.MarshalIndent(in.Config, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", guest.ConfigPath, err)
		}

		part.WriteFiles = append(part.WriteFiles, writeFile{guest.ConfigPath, string(content) + "\n", rootOwner, secretMode})
	}

	boot, err := buildDHCPDropIn(in)
	if err != nil {
		return nil, err
	}

	part.BootCmd = boot

	files, commands, err := buildDelivery(in, overrides)
	if err != nil {
		return nil, err
	}

	part.WriteFiles = append(part.WriteFiles, files...)
	part.RunCmd = append(part.RunCmd, commands...)

	if startEarly { // must be the last file
		part.WriteFiles = append(part.WriteFiles, writeFile{guest.StartPath, "", rootOwner, unitMode})
	}

	if in.Config != nil && !overrides.startsService {
		part.RunCmd = append(part.RunCmd, []string{"systemctl", "start", "--no-block", guest.ServiceUnit})
	}

	return toNode(part)
}
