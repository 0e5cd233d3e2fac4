// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winservice runs a program as a Windows service, if the service manager has started it.
package winservice

import (
	"context"
	"io"
)

// Program runs until it has finished, or until ctx ends, and returns the exit code.
type Program func(ctx context.Context, stdout, stderr io.Writer) int
