// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the SPIRE server and agent that tests attest with, and that the
// machine image of hack/vm-image holds.
package tools

import (
	_ "github.com/spiffe/spire/cmd/spire-agent"
	_ "github.com/spiffe/spire/cmd/spire-server"
)
