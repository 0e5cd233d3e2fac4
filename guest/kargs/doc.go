// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kargs turns the network data on a machine's config drive into the network
// arguments of dracut, for the early boot before Ignition: what afterburn does with
// `afterburn exp rd-network-kargs --provider kubevirt`, argument for argument.
//
//	drive (label config-2, else cidata) -> network_data.json or network-config -> arguments
//
// The rules are afterburn's of 5.11 (src/providers/kubevirt), also where others would be
// kinder: an interface goes by its name, else by its MAC address, else it is left out; of
// routes only those to everywhere are told; gateway, gateway4 and gateway6 count only
// where there are no routes; a device of version 2 that has a match goes by its MAC
// address unless its key begins with eth; "default" is no route's destination.
package kargs
