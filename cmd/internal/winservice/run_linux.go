// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"context"
	"os"
)

// Run runs a program without a service: only Windows has a service manager.
func Run(_ string, run Program) int { return run(context.Background(), os.Stdout, os.Stderr) }
