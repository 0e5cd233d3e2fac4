// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"

	"github.com/hyperfleet/hyperfleet/guest"
)

// newOptions returns the options of the service. The service powers the machine off only if root is that of the machine,
// and not a folder.
func newOptions(config, root string, stdout io.Writer) guest.Options {
	opts := guest.Options{ConfigPath: config, Root: root, Log: slog.New(slog.NewJSONHandler(stdout, nil))}
	if guest.IsRoot(root) {
		opts.PowerOff = guest.PowerOff
	}
	return opts
}
