// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package web implements `hyperfleet web`, which serves pages with the pools, jobs, machines, hypervisors,
// hosts and bridges of a cluster. The command uses the kubeconfig of the user and listens on loopback by
// default. The server renders the pages, which load nothing from the internet and change nothing.
package web
