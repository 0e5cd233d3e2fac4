// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// Defaults are what a configuration file is read over.
func Defaults() platform.Sentinel {
	return platform.Sentinel{
		PollInterval: 5 * time.Second, RelistInterval: 10 * time.Minute, PageSize: client.MaxPageSize,
		MaxAgeNotReconciled: 10 * time.Second, MaxAgeReconciled: 30 * time.Minute,
		HealthAddress: ":8080", MetricsAddress: ":9090",
	}
}

const (
	minInterval = 100 * time.Millisecond
	maxSelector = 10
)

// Validate says everything that is wrong with a configuration, expressions included.
func Validate(c *platform.Sentinel) error {
	var errs []error

	wrong := func(bad bool, key, text string) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}
	wrong(!regexp.MustCompile(`^[a-z][a-z0-9]*$`).MatchString(c.ResourceType), "resource_type",
		"name the collection to watch, for example clusters")
	wrong(c.Clients.HyperFleetAPI.BaseURL == "", "clients.hyperfleet_api.base_url", "say where the fleet API is")
	wrong(c.PollInterval < minInterval, "poll_interval", "at least 100ms")
	wrong(c.RelistInterval < time.Second, "relist_interval", "at least 1s")
	wrong(c.PageSize < 1 || c.PageSize > client.MaxPageSize, "page_size", "1 to 100")
	wrong(c.MaxAgeNotReconciled < minInterval, "max_age_not_reconciled", "at least 100ms")
	wrong(c.MaxAgeReconciled < c.MaxAgeNotReconciled, "max_age_reconciled", "not less than max_age_not_reconciled")
	wrong(len(c.ResourceSelector) > maxSelector, "resource_selector", "at most 10 labels")
	wrong(c.Lease != "" && !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,126}[a-z0-9])?$`).MatchString(c.Lease), "lease",
		"write small letters, digits, '.' and '-', at most 128")

	for _, label := range c.ResourceSelector {
		wrong(label.Label == "", "resource_selector", "a label has a name")
	}

	if _, err := log.ParseLevel(c.Log.Level); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.level", "%w", err))
	}

	if _, err := log.ParseFormat(c.Log.Format); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.format", "%w", err))
	}

	if _, err := compileDecision(c, false, nil); err != nil {
		errs = append(errs, err)
	}

	if _, err := compileData(c.MessageData); err != nil {
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// topicOf is where events go.
func topicOf(c *platform.Sentinel) string { return cmp.Or(c.Topic, c.ResourceType) }

// leaseOf is the name under which replicas agree: those that send the same events to the
// same place.
func leaseOf(c *platform.Sentinel) string {
	if c.Lease != "" {
		return c.Lease
	}

	const enough = 6

	sum := sha256.Sum256([]byte(selectorText(c.ResourceSelector) + "\n" + topicOf(c)))

	return "sentinel." + c.ResourceType + "." + hex.EncodeToString(sum[:enough])
}

// selectorText is the selector as metrics and logs show it.
func selectorText(selector []platform.LabelSelector) string {
	parts := make([]string, len(selector))
	for i, label := range selector {
		parts[i] = label.Label + "=" + label.Value
	}

	return strings.Join(parts, ",")
}

// search is the selector in the API's search language.
func search(selector []platform.LabelSelector) []string {
	parts := make([]string, len(selector))
	for i, label := range selector {
		parts[i] = "labels." + quote(label.Label) + " = " + quote(label.Value)
	}

	return parts
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
