// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netdata contains a model of a machine's network configuration. It encodes the model as OpenStack's
// network_data.json (config drive) and as cloud-init's network-config version 2 (NoCloud), and parses both
// formats.
//
//	Network  --EncodeOpenStack()-->  network_data.json  --Parse()-->  the same Network
//	   |-------EncodeV2()--------->  network-config    ---Parse()-->  the same Network
//	data of a user, addresses of a pool --Expand()--> the same data with the addresses
//
// Expand does not use the model. It adds the addresses to one interface and keeps everything else, including
// values that the model does not support.
//
// Sources: the schema of network_data.json in nova's documentation (doc/api_schemas/network_data.json),
// cloud-init's "Networking config Version 2", and the behavior of afterburn at early boot. Afterburn takes
// the name of an interface from the key name of a link, which the schema does not have. It skips links
// without a name and a MAC address.
//
// The package uses no clock, no network and no files.
package netdata
