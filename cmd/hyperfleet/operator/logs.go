// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

// maxLogPrefix is the maximum length of the prefix. A key has at most 1024 bytes, and also contains the
// namespace and the machine.
const maxLogPrefix = 512

// validateLogs checks the settings for the place where runner logs are kept.
func validateLogs(cfg v1alpha1.RunnerLogs) error {
	locations := []string{v1alpha1.LogsInCluster, v1alpha1.LogsInStore, v1alpha1.LogsNowhere}
	if !slices.Contains(locations, cfg.KeepIn) {
		return strictyaml.ErrorAt("runners.logs.keepIn", "unknown place %q: use one of %s", cfg.KeepIn, strings.Join(locations, ", "))
	}

	if cfg.KeepIn != v1alpha1.LogsInStore {
		return nil
	}

	var errs []error

	addError := func(key string, err error) {
		if err != nil {
			errs = append(errs, strictyaml.ErrorAt("runners.logs.store."+key, "%w", err))
		}
	}
	require := func(value, meaning string) error {
		if value == "" {
			return fmt.Errorf("it must name %s, because logs are kept in the store", meaning)
		}

		return nil
	}

	store := cfg.Store
	addError("endpoint", objectstore.ValidateEndpoint(store.Endpoint))
	addError("region", require(store.Region, "the bucket's region"))
	addError("secret", require(store.Secret, "a Secret in the operator's namespace"))
	addError("bucket", objectstore.ValidateBucket(store.Bucket))
	addError("prefix", objectstore.ValidatePrefix(store.Prefix, maxLogPrefix))

	return errors.Join(errs...)
}
