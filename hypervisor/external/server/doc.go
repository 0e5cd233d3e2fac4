// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server makes a program of a hypervisor.Provider. An author writes the provider and a main:
//
//	server.Run(ctx, server.Options{Address: "unix:///run/fleet/provider.sock"}, server.Program{
//		Name: "example", Version: "1", New: func(config hypervisor.Config, options hypervisor.Options) ...
//	})
//
// The server opens one connection of the provider for each operator that connects, and closes it
// when the operator leaves. docs/guides/write-a-provider.md explains how to test the program.
package server
