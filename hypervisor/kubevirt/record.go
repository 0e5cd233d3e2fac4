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

// Annotations and labels of this product's objects. The annotation AnnotationOwner is the ownership.
// The labels repeat parts of it for people and for label selectors.
const (
	AnnotationOwner = "hyperfleet.io/owner"
	annotationTags  = "hyperfleet.io/tags"

	labelManagedBy = "app.kubernetes.io/managed-by"
	labelOperator  = "hyperfleet.io/operator"
	labelClaim     = "hyperfleet.io/claim-uid"
	labelMachine   = "hyperfleet.io/machine-id"
)

// Record is the ownership record of a machine and of its cloud-init Secret. It is the value of their
// annotation hyperfleet.io/owner.
type Record struct {
	hypervisor.Record

	// ID of the machine that the record was written for.
	ID int `json:"id"`
}

// ParseRecord returns the ownership record of an object, or hypervisor.ErrNoRecord if the object has
// none.
func ParseRecord(obj client.Object) (Record, error) {
	raw, ok := obj.GetAnnotations()[AnnotationOwner]
	if !ok {
		return Record{}, hypervisor.ErrNoRecord
	}

	var r Record
	if err := hypervisor.DecodeRecord(raw, &r); err != nil {
		return Record{}, err
	}

	return r, nil
}

// identity identifies this operator on one cluster. The operator owns an object if the object's
// record carries the identity.
type identity struct{ hypervisor.Identity }

// selector returns the label selector for this operator's objects.
func (i identity) selector() client.MatchingLabels {
	return client.MatchingLabels{labelManagedBy: hypervisor.ManagedBy, labelOperator: i.Hash()}
}

// ownerSelector returns the label selector for the objects of one claim.
func (i identity) ownerSelector(owner hypervisor.Owner) client.MatchingLabels {
	labels := i.selector()
	labels[labelClaim] = owner.UID

	return labels
}

// ownedRecord returns the record of an object, and whether this operator owns the object. A copy of an object has
// the record of the original, but another name.
func (i identity) ownedRecord(obj client.Object) (Record, bool) {
	r, err := ParseRecord(obj)

	return r, err == nil && i.HasWritten(r.Record) && obj.GetName() == hypervisor.MachineName(r.Owner(), r.ID)
}

// claimRecord returns the record of an object, and whether the object belongs to the owner's claim and
// to this operator.
func (i identity) claimRecord(obj client.Object, owner hypervisor.Owner) (Record, bool) {
	r, isOurs := i.ownedRecord(obj)

	return r, isOurs && r.MachineClaim.UID == owner.UID
}

// newMetadata returns the labels and annotations for an object of the owner.
func (i identity) newMetadata(
	id int, owner hypervisor.Owner, network hypervisor.NetworkOptions, tags map[string]string, now time.Time,
) (labels, annotations map[string]string, err error) {
	raw, err := json.Marshal(Record{Record: i.NewRecord(owner, network, now), ID: id})
	if err != nil {
		return nil, nil, fmt.Errorf("encode ownership record of machine %d: %w", id, err)
	}

	labels = i.ownerSelector(owner)
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
