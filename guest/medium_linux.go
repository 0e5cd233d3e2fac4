// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import "log/slog"

// provideConfig does nothing: cloud-init writes the configuration before it starts the service.
func provideConfig(string, Clock, *slog.Logger) error { return nil }
