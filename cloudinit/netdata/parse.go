// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Format is a form of network data.
type Format string

// Formats.
const (
	// OpenStack is network_data.json of a config drive.
	OpenStack Format = "openstack"
	// V2 is network-config of version 2, of NoCloud.
	V2 Format = "v2"
)

// Parse reads network data of either format, as JSON or as YAML. What the formats allow
// and the model has no words for (a vif_id, a metric, a bridge's parameters) is passed
// over; what contradicts a format is an error with its place.
func Parse(data []byte) (*Network, Format, error) {
	root, _, err := decode(data)
	if err != nil {
		return nil, "", err
	}

	format, at, err := formatOf(root)
	if err != nil {
		return nil, "", err
	}

	var n *Network

	if format == OpenStack {
		n, err = parseOpenStack(at)
	} else {
		for _, section := range notInModel() {
			if c := at.get(section); c.present() {
				return nil, "", c.errorf("is not read: only ethernets, bonds and vlans are")
			}
		}

		n, err = parseV2(at)
	}

	if err != nil {
		return nil, "", err
	}

	if err := n.Validate(); err != nil {
		return nil, "", fmt.Errorf("network data: %w", err)
	}

	return n, format, nil
}

// formatOf tells the format, and where it begins: network-config may stand below the key
// network, as in netplan's own files.
func formatOf(root *yaml.Node) (Format, cursor, error) {
	at := cursor{node: root}
	if inner := lookup(root, "network"); inner != nil && inner.Kind == yaml.MappingNode {
		at = cursor{path: "network", node: inner}
	}

	version := at.get("version")

	switch {
	case version.present() && version.node.Value == "2":
		return V2, at, nil
	case version.present():
		return "", at, version.errorf("%q: only version 2 is read", version.node.Value)
	case lookup(root, keyLinks) != nil || lookup(root, keyNetworks) != nil:
		return OpenStack, cursor{node: root}, nil
	default:
		return "", at, at.errorf("is neither OpenStack's (links, networks, services) nor cloud-init's (version: 2)")
	}
}
