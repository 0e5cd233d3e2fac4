// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/client-go/tools/cache"
)

// What became of an object.
const (
	// Kept: the resource is there.
	Kept = "Kept"
	// Skipped: it is not known whether it may go; the reason says why.
	Skipped = "Skipped"
	// WouldDelete: it would be deleted, if this were no dry run.
	WouldDelete = "WouldDelete"
	// Deleted: its deletion was accepted.
	Deleted = "Deleted"
	// Failed: it could not be deleted.
	Failed = "Failed"
)

// Why an object was skipped.
const (
	// ReasonNoResourceID: the label hyperfleet.io/resource-id is missing or no UUID.
	ReasonNoResourceID = "NoResourceID"
	// ReasonNotStamped: there is no HMAC.
	ReasonNotStamped = "NotStamped"
	// ReasonUnknownKey: the HMAC is by a key that is not among ours.
	ReasonUnknownKey = "UnknownKey"
	// ReasonForged: the HMAC is another object's or resource's.
	ReasonForged = "Forged"
	// ReasonDeleting: it is being deleted already.
	ReasonDeleting = "Deleting"
	// ReasonTooYoung: it is younger than min_age.
	ReasonTooYoung = "TooYoung"
	// ReasonAPI: the API gave no clear answer about the resource.
	ReasonAPI = "NoClearAnswer"
	// ReasonChanged: it was changed while sweep ran.
	ReasonChanged = "Changed"
	// ReasonLimit: the run was stopped by a limit.
	ReasonLimit = "Limit"
)

// Report is what one run found and did.
type Report struct {
	// Started is when the run began, DurationSeconds how long it took.
	Started         time.Time `json:"started"`
	DurationSeconds float64   `json:"duration_seconds"`
	// DryRun: nothing was to be deleted.
	DryRun bool `json:"dry_run"`
	// Stopped says why the run deleted nothing although it might have; empty otherwise.
	Stopped string `json:"stopped,omitempty"`
	// Kinds is the number of kinds looked at, Objects of objects with our label,
	// Resources of resources that the API was asked for, Gone of those it has not.
	Kinds     int `json:"kinds"`
	Objects   int `json:"objects"`
	Resources int `json:"resources"`
	Gone      int `json:"gone"`
	// Outcomes counts the objects by outcome.
	Outcomes map[string]int `json:"outcomes"`
	// Items are the objects that were not kept for their resource.
	Items []Item `json:"items"`
	// Errors are the kinds, API groups and resources that could not be looked at; the
	// others were.
	Errors []string `json:"errors,omitempty"`
}

// Item is one object.
type Item struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	// Adapter and ResourceID are what its labels say, proven or not.
	Adapter    string `json:"adapter"`
	ResourceID string `json:"resource_id,omitempty"`
	Outcome    string `json:"outcome"`
	Reason     string `json:"reason,omitempty"`
	Message    string `json:"message,omitempty"`
}

// Incomplete says that something could not be looked at or deleted, or that a limit
// stopped the run.
func (r *Report) Incomplete() bool {
	return r.Stopped != "" || len(r.Errors) > 0 || r.Outcomes[Failed] > 0
}

// sorted puts the report into an order that does not depend on who answered first.
func (r *Report) sort() {
	slices.Sort(r.Errors)
	slices.SortFunc(r.Items, func(a, b Item) int {
		return strings.Compare(a.order(), b.order())
	})
}

func (i *Item) order() string {
	return strings.Join([]string{i.Outcome, i.Kind, i.APIVersion, i.Namespace, i.Name, i.UID}, "\x00")
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	var out strings.Builder

	fmt.Fprintf(&out, "%s of %s; %s asked for, %d gone\n", english.Plural(r.Objects, "object", ""),
		english.Plural(r.Kinds, "kind", ""), english.Plural(r.Resources, "resource", ""), r.Gone)

	for _, item := range r.Items {
		fmt.Fprintf(&out, "  %-12s %s %s (adapter %s, resource %s)", item.Outcome, item.Kind,
			cache.NewObjectName(item.Namespace, item.Name), item.Adapter, item.ResourceID)

		if item.Reason != "" {
			fmt.Fprintf(&out, ": %s", item.Reason)
		}

		if item.Message != "" {
			fmt.Fprintf(&out, ": %s", item.Message)
		}

		out.WriteByte('\n')
	}

	for _, text := range r.Errors {
		fmt.Fprintf(&out, "  error: %s\n", text)
	}

	switch {
	case r.Stopped != "":
		fmt.Fprintf(&out, "stopped, and deleted nothing: %s\n", r.Stopped)
	case r.DryRun:
		fmt.Fprintf(&out, "a dry run: %d would be deleted, %d kept, %d skipped; --delete deletes them\n",
			r.Outcomes[WouldDelete], r.Outcomes[Kept], r.Outcomes[Skipped])
	default:
		fmt.Fprintf(&out, "%d deleted, %d kept, %d skipped, %d failed\n",
			r.Outcomes[Deleted], r.Outcomes[Kept], r.Outcomes[Skipped], r.Outcomes[Failed])
	}

	_, err := io.WriteString(w, out.String())

	return err
}
