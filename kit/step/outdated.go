// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

const (
	// ReasonCRDOutdated is the reason of a status that cannot be written because the CRD lacks a field of it.
	ReasonCRDOutdated = "CRDOutdated"
	// outdatedRetryDelay is the time after which an object with an outdated CRD is reconciled again.
	outdatedRetryDelay = 30 * time.Second
)

// unknownFieldPattern matches an unknown field in the API server's error of strict field validation.
var unknownFieldPattern = regexp.MustCompile(`unknown field "([^"]+)"`)

// explainUnknownFields returns an error of class Configuration with the fix if err says that the CRD lacks fields
// that were written. Otherwise, it returns err.
func (p *statusPatcher) explainUnknownFields(err error) error {
	if !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
		return err
	}

	var fields []string
	for _, match := range unknownFieldPattern.FindAllStringSubmatch(err.Error(), -1) {
		fields = append(fields, match[1])
	}

	if len(fields) == 0 {
		return err
	}

	kind := "object"
	if gvk, kindErr := p.reconciler.Client.GroupVersionKindFor(p.obj); kindErr == nil {
		kind = gvk.Kind
	}

	return errclass.New(errclass.Configuration, ReasonCRDOutdated,
		"the CRD of %s is older than the operator and lacks %s: run `kubectl apply --server-side -f hyperfleet-crds.yaml` "+
			"with the file of the operator's release, or upgrade its chart hyperfleet-crds", kind, strings.Join(fields, ", "))
}

func isCRDOutdated(err error) bool {
	var classified *errclass.Error

	return errors.As(err, &classified) && classified.Reason() == ReasonCRDOutdated
}

// saveCRDOutdated discards the changes of the run, because the CRD lacks fields for them, and writes only the
// conditions, which report this. It returns the result that ends the run.
func (p *statusPatcher) saveCRDOutdated(ctx context.Context, refusal error) (Result, error) {
	if p.applyResult == nil {
		return Fail(refusal), refusal
	}

	result := FromError(refusal, 0)
	result.requeueAfter = outdatedRetryDelay
	p.applyResult(result)

	conditions := *p.obj.StatusConditions()

	stored, ok := p.base.DeepCopyObject().(Object)
	if !ok {
		return Fail(refusal), refusal
	}

	reflect.ValueOf(p.obj).Elem().Set(reflect.ValueOf(stored).Elem())
	*p.obj.StatusConditions() = conditions

	return result, p.save(ctx)
}
