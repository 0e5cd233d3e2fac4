// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package linux is the kind LinuxMachine: a Linux host that is there already, reached at an
// address that somebody wrote down, and made of what hosts/plan/linux says. It is had and
// given back without doing anything.
package linux
