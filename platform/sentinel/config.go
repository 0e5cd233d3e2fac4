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

// Defaults returns the default configuration, which a configuration file overrides.
func Defaults() platform.Sentinel {
	return platform.Sentinel{
		PollInterval: 5 * time.Second, RelistInterval: 10 * time.Minute, PageSize: client.MaxPageSize,
		MaxAgeNotReconciled: 10 * time.Second, MaxAgeReconciled: 30 * time.Minute,
		HealthAddress: ":8080", MetricsAddress: ":9090",
		Clients: platform.SentinelPeers{HyperFleetAPI: platform.APIClient{Timeout: client.DefaultTimeout}},
		Broker:  platform.DefaultBroker(), Log: platform.Log{Level: "info", Format: "json"},
	}
}

const (
	minInterval = 100 * time.Millisecond
	maxSelector = 10
)

// Validate returns all problems of a configuration and its expressions.
func Validate(c *platform.Sentinel) error {
	var e strictyaml.KeyErrors

	e.Requiref(regexp.MustCompile(`^[a-z][a-z0-9]*$`).MatchString(c.ResourceType), "resource_type",
		"name the collection to watch, for example clusters")
	e.Requiref(c.Clients.HyperFleetAPI.BaseURL != "", "clients.hyperfleet_api.base_url", "set the base URL of the fleet API")
	e.Requiref(c.PollInterval >= minInterval, "poll_interval", "at least 100ms")
	e.Requiref(c.RelistInterval >= time.Second, "relist_interval", "at least 1s")
	e.Requiref(c.PageSize >= 1 && c.PageSize <= client.MaxPageSize, "page_size", "1 to 100")
	e.Requiref(c.MaxAgeNotReconciled >= minInterval, "max_age_not_reconciled", "at least 100ms")
	e.Requiref(c.MaxAgeReconciled >= c.MaxAgeNotReconciled, "max_age_reconciled", "must not be less than max_age_not_reconciled")
	e.Requiref(len(c.ResourceSelector) <= maxSelector, "resource_selector", "at most 10 labels")
	e.Requiref(c.Lease == "" || regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,126}[a-z0-9])?$`).MatchString(c.Lease), "lease",
		"write at most 128 lower-case letters, digits, '.' and '-'")

	for _, label := range c.ResourceSelector {
		e.Requiref(label.Label != "", "resource_selector", "set the name of every label")
	}

	_, errLevel := log.ParseLevel(c.Log.Level)
	e.Add(errLevel, "log", "level")

	_, errFormat := log.ParseFormat(c.Log.Format)
	e.Add(errFormat, "log", "format")

	const shouldResendAll = false // only Sentinel itself may resend all events
	_, errDecision := compileDecision(c, shouldResendAll, nil)
	_, errData := compileData(c.MessageData)

	return errors.Join(e.Err(), errDecision, errData)
}

func topicName(c *platform.Sentinel) string { return cmp.Or(c.Topic, c.ResourceType) }

// leaseName returns the name of the lease. By default, replicas that publish the same events to the
// same topic share a lease.
func leaseName(c *platform.Sentinel) string {
	if c.Lease != "" {
		return c.Lease
	}

	const hashBytes = 6

	sum := sha256.Sum256([]byte(formatSelector(c.ResourceSelector) + "\n" + topicName(c)))

	return "sentinel." + c.ResourceType + "." + hex.EncodeToString(sum[:hashBytes])
}

func formatSelector(selector []platform.LabelSelector) string {
	parts := make([]string, len(selector))
	for i, label := range selector {
		parts[i] = label.Label + "=" + label.Value
	}

	return strings.Join(parts, ",")
}

// buildSearch returns the selector as conditions in the API's search language.
func buildSearch(selector []platform.LabelSelector) []string {
	parts := make([]string, len(selector))
	for i, label := range selector {
		parts[i] = "labels." + quote(label.Label) + " = " + quote(label.Value)
	}

	return parts
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
