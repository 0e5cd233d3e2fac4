// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// ErrNetworkData marks the errors of Render that cloudInit.networkData causes.
var ErrNetworkData = errors.New(fieldNetworkData)

// networkDataError is an ErrNetworkData with the text of another error. It does not wrap that error.
type networkDataError struct{ error }

// Is returns whether target is ErrNetworkData.
func (networkDataError) Is(target error) bool { return target == ErrNetworkData }

// renderUserNetwork returns the user's network configuration. If the template has an address pool, it adds the
// addresses that the machine got from the pool.
//
// It keeps all other values of a network-config. It converts OpenStack's network_data.json to a
// network-config, because NoCloud supports no other format.
func renderUserNetwork(in *Input) ([]byte, error) {
	hasPool := in.Network.AddressPool() != nil
	if hasPool && len(in.Addresses) == 0 {
		return nil, errNoAddress
	}

	out, err := completeNetwork(in, hasPool)
	if err != nil {
		return nil, networkDataError{err}
	}

	return out, nil
}

// completeNetwork renders the user's network data and returns it as a network-config. It adds the machine's
// addresses from the pool to version 2 and to network_data.json. For version 1, the user's text must
// contain them. It returns nil if the text is empty and there is no pool.
func completeNetwork(in *Input, hasPool bool) ([]byte, error) {
	text, err := executeTemplate(fieldNetworkData, in.NetworkData, &in.Vars, maxOtherData)
	if err != nil {
		return nil, err
	}

	root, err := parseYAML(fieldNetworkData, text)
	if err != nil || len(root.Content) == 0 && !hasPool {
		return nil, err
	}

	version := networkVersion(root)

	switch {
	case version == "1" && hasPool:
		err = requireAddress(text, in.Addresses)
	case version == "2" && hasPool, isOpenStack(root):
		root, err = addAddresses(in, text, hasPool)
	case version != "1" && version != "2":
		err = fmt.Errorf("%s line %d: must have version: 1 or version: 2, or be OpenStack's network_data.json (links, networks)",
			fieldNetworkData, max(root.Line, 1))
	}

	if err != nil {
		return nil, err
	}

	// Older releases of cloud-init do not support a top-level network key.
	if inner := unwrapNetwork(root); inner != nil {
		root = inner
	}

	return strictyaml.Encode(root)
}

// unwrapNetwork returns the value of the key network if it is the only key, and nil otherwise.
func unwrapNetwork(root *yaml.Node) *yaml.Node {
	if len(root.Content) != 2 {
		return nil
	}

	return strictyaml.Lookup(root, "network")
}

// networkVersion returns the version of a network-config. It returns the empty string if there is no version.
func networkVersion(root *yaml.Node) string {
	if inner := unwrapNetwork(root); inner != nil {
		root = inner
	}

	if version := strictyaml.Lookup(root, "version"); version != nil {
		return version.Value
	}

	return ""
}

func isOpenStack(root *yaml.Node) bool {
	hasKey := func(key string) bool { return strictyaml.Lookup(root, key) != nil }

	return !hasKey("version") && (hasKey("links") || hasKey("networks"))
}

// requireAddress returns an error if version 1 contains none of the addresses, because addresses cannot be
// added to version 1.
func requireAddress(text string, addresses []netip.Prefix) error {
	hasAddress, err := netdata.HasAddress([]byte(text), addresses)
	if err == nil && !hasAddress {
		err = errors.New("version 1 has none of the machine's addresses: write {{ .StaticIP }} and {{ .NetmaskBits }}, " +
			"or use version: 2, to which the operator adds them")
	}

	if err != nil {
		return fmt.Errorf("%s: %w", fieldNetworkData, err)
	}

	return nil
}

// addAddresses adds the addresses of a pool to the user's data. It converts OpenStack's format.
func addAddresses(in *Input, text string, hasPool bool) (*yaml.Node, error) {
	var allocation netdata.Allocation

	if hasPool {
		allocation.Addresses, allocation.Interface = in.Addresses, in.Network.Interface
	}

	out, format, err := netdata.Expand([]byte(text), allocation)

	switch {
	case errors.Is(err, netdata.ErrNoInterface), errors.Is(err, netdata.ErrSeveralInterfaces):
		return nil, fmt.Errorf("%s: %w: set network.interface to an existing interface, or write {{ .Addresses }} where they belong",
			fieldNetworkData, err)
	case err == nil && format == netdata.FormatOpenStack:
		out, err = convertOpenStack(out)
	}

	if err != nil {
		return nil, fmt.Errorf("%s: %w", fieldNetworkData, err)
	}

	return parseYAML(fieldNetworkData, string(out))
}

// convertOpenStack converts OpenStack's network_data.json to a network-config.
func convertOpenStack(data []byte) ([]byte, error) {
	network, _, err := netdata.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}

	out, err := network.EncodeV2()
	if err != nil {
		return nil, fmt.Errorf("convert to version 2: %w", err)
	}

	return out, nil
}
