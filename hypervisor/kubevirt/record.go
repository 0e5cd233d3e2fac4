// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// What marks this product's objects. The annotation is the ownership; the labels follow
// it for people and for listing.
const (
	AnnotationOwner = "hyperfleet.io/owner"
	annotationTags  = "hyperfleet.io/tags"

	labelManagedBy = "app.kubernetes.io/managed-by"
	labelOperator  = "hyperfleet.io/operator"
	labelClaim     = "hyperfleet.io/claim-uid"
	labelMachine   = "hyperfleet.io/machine-id"

	// maxName is the longest name of a machine: KubeVirt makes a label of it.
	maxName = 63
)

// Record is the ownership of a machine and of its cloud-init Secret, as it stands in their
// annotation hyperfleet.io/owner.
type Record struct {
	hypervisor.Record

	// ID that the record was written for.
	ID int `json:"id"`
}

// ParseRecord reads the ownership of an object. hypervisor.ErrNoRecord means that it has
// none.
func ParseRecord(obj client.Object) (Record, error) {
	raw, ok := obj.GetAnnotations()[AnnotationOwner]
	if !ok {
		return Record{}, hypervisor.ErrNoRecord
	}

	var r Record
	if err := hypervisor.ReadRecord(raw, &r); err != nil {
		return Record{}, err
	}

	return r, nil
}

// identity is the operator on one cluster: what a record must carry to be ours.
type identity struct{ hypervisor.Identity }

// selector picks this operator's objects.
func (i identity) selector() client.MatchingLabels {
	return client.MatchingLabels{labelManagedBy: hypervisor.ManagedBy, labelOperator: i.Hash()}
}

// of picks the objects of one claim.
func (i identity) of(owner hypervisor.Owner) client.MatchingLabels {
	labels := i.selector()
	labels[labelClaim] = owner.UID

	return labels
}

// owns gives an object's record if the object is this operator's.
func (i identity) owns(obj client.Object) (Record, bool) {
	r, err := ParseRecord(obj)

	return r, err == nil && i.Wrote(r.Record)
}

// isOf gives an object's record if the object is this owner's.
func (i identity) isOf(obj client.Object, owner hypervisor.Owner) (Record, bool) {
	r, ours := i.owns(obj)

	return r, ours && r.MachineClaim.UID == owner.UID
}

// marks are the labels and annotations of an object made for an owner.
func (i identity) marks(
	id int, owner hypervisor.Owner, tags map[string]string, now time.Time,
) (labels, annotations map[string]string, err error) {
	raw, err := json.Marshal(Record{Record: i.Record(owner, now), ID: id})
	if err != nil {
		return nil, nil, fmt.Errorf("encode ownership of machine %d: %w", id, err)
	}

	labels = i.of(owner)
	labels[labelMachine] = strconv.Itoa(id)

	if owner.Pool != "" {
		labels[v1alpha1.LabelRunnerPool] = owner.Pool
	}

	annotations = map[string]string{AnnotationOwner: string(raw)}

	if len(tags) > 0 {
		pairs := make([]string, 0, len(tags))
		for _, key := range slices.Sorted(maps.Keys(tags)) {
			pairs = append(pairs, key+"-"+tags[key])
		}

		annotations[annotationTags] = strings.Join(pairs, ",")
	}

	return labels, annotations, nil
}

// nameOf is a machine's name: its claim's, and its id. What is cut off a long one is the
// front: a claim's random part is at its end.
func nameOf(owner hypervisor.Owner, id int) string {
	suffix := "-" + strconv.Itoa(id)

	name := owner.Name
	if over := len(name) + len(suffix) - maxName; over > 0 {
		name = strings.TrimLeft(name[over:], "-.")
	}

	// A claim's name may hold dots; a machine's, which is a host's name too, may not.
	return strings.ReplaceAll(name, ".", "-") + suffix
}
