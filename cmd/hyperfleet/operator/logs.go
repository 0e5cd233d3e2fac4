// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"slices"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// maxLogPrefix leaves room in a key, of 1024 letters, for a namespace and a machine.
const maxLogPrefix = 512

// logSettings checks where logs of runners are kept.
func logSettings(cfg v1alpha1.RunnerLogs) error {
	places := []string{v1alpha1.LogsInCluster, v1alpha1.LogsInStore, v1alpha1.LogsNowhere}
	if !slices.Contains(places, cfg.KeepIn) {
		return strictyaml.ErrorAt("runners.logs.keepIn", "there is no place %q: choose of %v", cfg.KeepIn, places)
	}

	if cfg.KeepIn != v1alpha1.LogsInStore {
		return nil
	}

	var errs []error

	at := func(key string, err error) {
		if err != nil {
			errs = append(errs, strictyaml.ErrorAt("runners.logs.store."+key, "%w", err))
		}
	}
	missing := func(value, what string) error {
		if value == "" {
			return fmt.Errorf("it must name %s, since logs are kept in the store", what)
		}

		return nil
	}

	store := cfg.Store
	at("endpoint", objectstore.Check(store.Endpoint))
	at("region", missing(store.Region, "the bucket's region"))
	at("secret", missing(store.Secret, "a Secret in the operator's namespace"))
	at("bucket", objectstore.CheckBucket(store.Bucket))
	at("prefix", objectstore.CheckPrefix(store.Prefix, maxLogPrefix))

	return errors.Join(errs...)
}
