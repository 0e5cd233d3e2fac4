// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"io"
)

func run(_ context.Context, _ Options, _, _ io.Writer) error { return errors.New("under construction") }
