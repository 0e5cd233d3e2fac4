// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const virtAPI = "kubevirt-webhook"

// Webhook calls KubeVirt's admission webhook for a VirtualMachine. It returns the messages of the causes
// for which the webhook rejects the VirtualMachine, nil if the webhook admits it.
type Webhook func(context.Context, *virtv1.VirtualMachine) ([]string, error)

// sharedWebhook starts the webhook once for all tests of a test program, because the start takes seconds.
// The webhook ends together with the test program.
var sharedWebhook = sync.OnceValues(startWebhook) //nolint:gochecknoglobals // as above

// StartVirtAPI returns KubeVirt's admission webhook for VirtualMachines, nil if its program is not installed.
func StartVirtAPI(t testing.TB) Webhook {
	t.Helper()

	webhook, err := sharedWebhook()
	if err != nil {
		t.Fatal(err)
	}

	return webhook
}

func startWebhook() (Webhook, error) {
	bin, err := procrun.FindBinaries(virtAPI)
	if err != nil {
		return nil, nil //nolint:nilnil // nil means that the program is not installed
	}

	address, err := procrun.PickAddress()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", virtAPI, err)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: filepath.Join(bin, virtAPI), Args: []string{address}, GracePeriod: grace,
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", virtAPI, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	webhook := newWebhook("http://" + address)
	checkReady := func(ctx context.Context) error { _, err := webhook(ctx, &virtv1.VirtualMachine{}); return err }

	if err := process.WaitReady(ctx, checkReady); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", virtAPI, err), process.Stop())
	}

	return webhook, nil
}

func newWebhook(url string) Webhook {
	return func(ctx context.Context, machine *virtv1.VirtualMachine) ([]string, error) {
		review, err := postReview(ctx, url, machine)
		if err != nil {
			return nil, fmt.Errorf("review VirtualMachine %s: %w", machine.Name, err)
		}

		return rejectionCauses(review.Response), nil
	}
}

func postReview(ctx context.Context, url string, machine *virtv1.VirtualMachine) (*admissionv1.AdmissionReview, error) {
	machine = machine.DeepCopy()
	machine.SetGroupVersionKind(virtv1.VirtualMachineGroupVersionKind)

	raw, err := json.Marshal(machine)
	if err != nil {
		return nil, fmt.Errorf("encode VirtualMachine: %w", err)
	}

	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: machine.Namespace, Name: machine.Name,
		Resource: metav1.GroupVersionResource{Group: virtv1.GroupVersion.Group, Version: "v1", Resource: "virtualmachines"},
		Object:   runtime.RawExtension{Raw: raw},
	}}

	if raw, err = json.Marshal(review); err != nil {
		return nil, fmt.Errorf("encode review: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("post review: %w", err)
	}
	defer func() { _ = response.Body.Close() }()

	review = &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(response.Body).Decode(review); err != nil {
		return nil, fmt.Errorf("decode review from response with status %s: %w", response.Status, err)
	}

	return review, nil
}

func rejectionCauses(response *admissionv1.AdmissionResponse) []string {
	switch {
	case response.Allowed:
		return nil
	case response.Result.Details == nil || len(response.Result.Details.Causes) == 0:
		return []string{response.Result.Message}
	}

	out := make([]string, 0, len(response.Result.Details.Causes))
	for _, cause := range response.Result.Details.Causes {
		out = append(out, cause.Message)
	}

	return out
}
