// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"context"
	"os"
)

// Run runs a program.
func Run(_ string, run Program) int { return run(context.Background(), os.Stdout, os.Stderr) }
