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

// Outcomes of objects.
const (
	// Kept means that the resource exists.
	Kept = "Kept"
	// Skipped means that sweep cannot tell whether the object may be deleted; the reason says why.
	Skipped = "Skipped"
	// WouldDelete means that sweep would delete the object if the run were not a dry run.
	WouldDelete = "WouldDelete"
	// Deleted means that the API server accepted the deletion.
	Deleted = "Deleted"
	// Failed means that the deletion failed.
	Failed = "Failed"
)

// Reasons of skipped objects.
const (
	// ReasonNoResourceID means that the label hyperfleet.io/resource-id is missing or not a UUID.
	ReasonNoResourceID = "NoResourceID"
	// ReasonNotStamped means that the object has no HMAC.
	ReasonNotStamped = "NotStamped"
	// ReasonUnknownKey means that the HMAC was made with a key that sweep does not have.
	ReasonUnknownKey = "UnknownKey"
	// ReasonForged means that the HMAC was made for another object or another resource.
	ReasonForged = "Forged"
	// ReasonDeleting means that the object is already being deleted, or was deleted during the run.
	ReasonDeleting = "Deleting"
	// ReasonTooYoung means that the object is younger than min_age.
	ReasonTooYoung = "TooYoung"
	// ReasonAPI means that the API did not say clearly whether the resource exists.
	ReasonAPI = "AmbiguousResponse"
	// ReasonChanged means that the object changed during the run.
	ReasonChanged = "Changed"
	// ReasonLimit means that a limit stopped the run.
	ReasonLimit = "Limit"
)

// Report says what one run found and did.
type Report struct {
	// Started is when the run began, DurationSeconds how long it took.
	Started         time.Time `json:"started"`
	DurationSeconds float64   `json:"duration_seconds"`
	// DryRun is true if the run was not allowed to delete anything.
	DryRun bool `json:"dry_run"`
	// Stopped says why the run deleted nothing although it found orphans. It is empty if no limit
	// stopped the run.
	Stopped string `json:"stopped,omitempty"`
	// Kinds is the number of listed kinds, Objects the number of objects with the ownership label,
	// Resources the number of resources that the API was queried for, and Gone the number of those
	// that do not exist.
	Kinds     int `json:"kinds"`
	Objects   int `json:"objects"`
	Resources int `json:"resources"`
	Gone      int `json:"gone"`
	// Outcomes is the number of objects by outcome.
	Outcomes map[string]int `json:"outcomes"`
	// Items are the objects whose outcome is not Kept.
	Items []Item `json:"items"`
	// Errors name the kinds, API groups and resources that could not be checked. All others were
	// checked.
	Errors []string `json:"errors,omitempty"`
}

// Item is one object of the report.
type Item struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	// Adapter and ResourceID are the values of the object's labels, which its HMAC may not prove.
	Adapter    string `json:"adapter"`
	ResourceID string `json:"resource_id,omitempty"`
	Outcome    string `json:"outcome"`
	Reason     string `json:"reason,omitempty"`
	Message    string `json:"message,omitempty"`
}

// IsIncomplete returns true if something could not be checked or deleted, or if a limit stopped the
// run.
func (r *Report) IsIncomplete() bool {
	return r.Stopped != "" || len(r.Errors) > 0 || r.Outcomes[Failed] > 0
}

// sort gives the report an order that does not depend on the order of responses.
func (r *Report) sort() {
	slices.Sort(r.Errors)
	r.Errors = slices.Compact(r.Errors) // each kind is listed twice
	slices.SortFunc(r.Items, func(a, b Item) int {
		return strings.Compare(a.sortKey(), b.sortKey())
	})
}

func (i *Item) sortKey() string {
	return strings.Join([]string{i.Outcome, i.Kind, i.APIVersion, i.Namespace, i.Name, i.UID}, "\x00")
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) error {
	var out strings.Builder

	fmt.Fprintf(&out, "%s of %s; %s queried, %d gone\n", english.Plural(r.Objects, "object", ""),
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
		fmt.Fprintf(&out, "stopped before any deletion: %s\n", r.Stopped)
	case r.DryRun:
		fmt.Fprintf(&out, "dry run: %d would be deleted, %d kept, %d skipped; use --delete to delete them\n",
			r.Outcomes[WouldDelete], r.Outcomes[Kept], r.Outcomes[Skipped])
	default:
		fmt.Fprintf(&out, "%d deleted, %d kept, %d skipped, %d failed\n",
			r.Outcomes[Deleted], r.Outcomes[Kept], r.Outcomes[Skipped], r.Outcomes[Failed])
	}

	_, err := io.WriteString(w, out.String())

	return err
}
