// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netdata is what a machine is told of its network: one model, written as
// OpenStack's network_data.json (config drive) and as cloud-init's network-config of
// version 2 (NoCloud), and read back from both.
//
//	Network  --OpenStack()-->  network_data.json  --Parse()-->  the same Network
//	   |-------V2()--------->  network-config    ---Parse()-->  the same Network
//	data of a user, addresses of a pool --Expand()--> the same data with the addresses
//
// Expand does not go through the model: it adds the addresses at one interface and
// leaves everything else as it was, also what the model has no words for.
//
// Sources: the schema of network_data.json in nova's documentation
// (doc/api_schemas/network_data.json), cloud-init's "Networking config Version 2", and
// what afterburn reads at early boot: it takes an interface's name from the key name of
// a link, which the schema does not have, and skips links without name and MAC.
//
// The package is pure: no clock, no network, no files.
package netdata
