// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the version of the SPIRE server and agent. Tests use both, and the machine image of
// hack/vm-image contains the agent.
package tools

import (
	_ "github.com/spiffe/spire/cmd/spire-agent"
	_ "github.com/spiffe/spire/cmd/spire-server"
)
