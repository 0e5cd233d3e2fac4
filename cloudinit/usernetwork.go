// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
)

// ErrNetworkData says that an error of Render is about cloudInit.networkData.
var ErrNetworkData = errors.New(fieldNetworkData)

// networkDataError is an ErrNetworkData in the words of another error.
type networkDataError struct{ error }

// Is says what it is.
func (networkDataError) Is(target error) bool { return target == ErrNetworkData }

// userNetwork gives the user's own network configuration, with the machine's addresses of
// a pool put in.
//
// What comes as network-config stays as it is but for them. OpenStack's network_data.json
// is put into the words of network-config, because NoCloud has no room for another format.
func userNetwork(in *Input) ([]byte, error) {
	pooled := in.Network.AddressPool() != nil
	if pooled && len(in.Addresses) == 0 {
		return nil, errNoAddress
	}

	out, err := completed(in, pooled)
	if err != nil {
		return nil, networkDataError{err}
	}

	return out, nil
}

func completed(in *Input, pooled bool) ([]byte, error) {
	text, err := expand(fieldNetworkData, in.NetworkData, &in.Vars, maxOtherData)
	if err != nil {
		return nil, err
	}

	root, err := parseYAML(fieldNetworkData, text)
	if err != nil || len(root.Content) == 0 && !pooled {
		return nil, err
	}

	version := versionOf(root)

	switch {
	case version == "1" && pooled:
		err = mustHave(text, in.Addresses)
	case version == "2" && pooled, openStack(root):
		root, err = withAddresses(in, text, pooled)
	case version != "1" && version != "2":
		err = fmt.Errorf("%s line %d: must have version: 1 or version: 2, or be OpenStack's network_data.json (links, networks)",
			fieldNetworkData, max(root.Line, 1))
	}

	if err != nil {
		return nil, err
	}

	// Older releases of cloud-init do not look below a top-level network key.
	if inner := below(root); inner != nil {
		root = inner
	}

	return encode(root)
}

// below is what stands below the key network, if it stands alone.
func below(root *yaml.Node) *yaml.Node {
	if len(root.Content) != 2 {
		return nil
	}

	return lookup(root, "network")
}

// versionOf is the version of a network-config, empty if it has none.
func versionOf(root *yaml.Node) string {
	if inner := below(root); inner != nil {
		root = inner
	}

	if version := lookup(root, "version"); version != nil {
		return version.Value
	}

	return ""
}

func openStack(root *yaml.Node) bool {
	return lookup(root, "version") == nil && (lookup(root, "links") != nil || lookup(root, "networks") != nil)
}

// mustHave refuses data that have none of the addresses and that none can be put into.
func mustHave(text string, addresses []netip.Prefix) error {
	there, err := netdata.Has([]byte(text), addresses)
	if err == nil && !there {
		err = errors.New("version 1 has none of the machine's addresses: write {{ .StaticIP }} and {{ .NetmaskBits }}, " +
			"or version: 2, which gets them put in")
	}

	if err != nil {
		return fmt.Errorf("%s: %w", fieldNetworkData, err)
	}

	return nil
}

// withAddresses puts a pool's addresses into the user's data.
func withAddresses(in *Input, text string, pooled bool) (*yaml.Node, error) {
	var allocation netdata.Allocation

	if pooled {
		allocation.Addresses, allocation.Interface = in.Addresses, in.Network.Interface
	}

	out, format, err := netdata.Expand([]byte(text), allocation)

	switch {
	case errors.Is(err, netdata.ErrNoInterface), errors.Is(err, netdata.ErrSeveralInterfaces):
		return nil, fmt.Errorf("%s: %w: set network.interface to one that is there, or write {{ .Addresses }} where they belong",
			fieldNetworkData, err)
	case err == nil && format == netdata.OpenStack:
		out, err = translate(out)
	}

	if err != nil {
		return nil, fmt.Errorf("%s: %w", fieldNetworkData, err)
	}

	return parseYAML(fieldNetworkData, string(out))
}

// translate puts OpenStack's network_data.json into the words of network-config.
func translate(data []byte) ([]byte, error) {
	network, _, err := netdata.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}

	out, err := network.V2()
	if err != nil {
		return nil, fmt.Errorf("translate: %w", err)
	}

	return out, nil
}
