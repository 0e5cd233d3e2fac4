// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Format is a format of network data.
type Format string

// Formats.
const (
	// FormatOpenStack is the network_data.json of a config drive.
	FormatOpenStack Format = "openstack"
	// FormatV2 is NoCloud's network-config version 2.
	FormatV2 Format = "v2"
)

// Parse parses network data of either format in JSON or YAML. It ignores settings that a format allows and
// the model does not support, e.g. a vif_id or a metric. It returns an error with the path for a value that
// is invalid in its format, and for links that the model does not support, e.g. a bridge.
func Parse(data []byte) (*Network, Format, error) {
	root, _, err := decodeTree(data)
	if err != nil {
		return nil, "", err
	}

	format, start, err := detectFormat(root)
	if err != nil {
		return nil, "", err
	}

	var n *Network

	if format == FormatOpenStack {
		n, err = parseOpenStack(start)
	} else {
		for _, section := range unsupportedSections() {
			if c := start.get(section); c.isPresent() {
				return nil, "", c.errorf("is not supported: use only ethernets, bonds and vlans")
			}
		}

		n, err = parseV2(start)
	}

	if err != nil {
		return nil, "", err
	}

	if err := n.Validate(); err != nil {
		return nil, "", fmt.Errorf("network data: %w", err)
	}

	return n, format, nil
}

// detectFormat returns the format and the position at which the network data starts. A network-config can be
// the value of the key network, as in netplan's own files.
func detectFormat(root *yaml.Node) (Format, cursor, error) {
	start := cursor{node: root}
	if inner := strictyaml.Lookup(root, "network"); inner != nil && inner.Kind == yaml.MappingNode {
		start = cursor{path: "network", node: inner}
	}

	version := start.get("version")

	switch {
	case version.isPresent() && version.node.Value == "2":
		return FormatV2, start, nil
	case version.isPresent():
		return "", start, version.errorf("%q: only version 2 is supported", version.node.Value)
	case strictyaml.Lookup(root, keyLinks) != nil || strictyaml.Lookup(root, keyNetworks) != nil:
		return FormatOpenStack, cursor{node: root}, nil
	default:
		return "", start, start.errorf("is neither OpenStack's format (links, networks, services) nor cloud-init's (version: 2)")
	}
}
