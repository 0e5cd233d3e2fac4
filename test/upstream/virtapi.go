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

// Judge says why a VirtualMachine is not let in, in KubeVirt's words: none if it is.
type Judge func(context.Context, *virtv1.VirtualMachine) ([]string, error)

// shared is the one program of a test program: it takes seconds to start, and tests many. It
// ends by itself with who started it.
var shared = sync.OnceValues(startVirtAPI) //nolint:gochecknoglobals // as above

// VirtAPI gives KubeVirt's admission of VirtualMachines. It is nil where the program is not
// there.
func VirtAPI(t testing.TB) Judge {
	t.Helper()

	judge, err := shared()
	if err != nil {
		t.Fatal(err)
	}

	return judge
}

func startVirtAPI() (Judge, error) {
	bin, err := procrun.FindBinaries(virtAPI)
	if err != nil {
		return nil, nil //nolint:nilnil // none is nil
	}

	address, err := procrun.Address()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", virtAPI, err)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: filepath.Join(bin, virtAPI), Args: []string{address}, Grace: grace,
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", virtAPI, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	judge := judgeAt("http://" + address)
	answers := func(ctx context.Context) error { _, err := judge(ctx, &virtv1.VirtualMachine{}); return err }

	if err := process.WaitReady(ctx, answers); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", virtAPI, err), process.Stop())
	}

	return judge, nil
}

func judgeAt(url string) Judge {
	return func(ctx context.Context, machine *virtv1.VirtualMachine) ([]string, error) {
		review, err := ask(ctx, url, machine)
		if err != nil {
			return nil, fmt.Errorf("ask KubeVirt about %s: %w", machine.Name, err)
		}

		return causes(review.Response), nil
	}
}

func ask(ctx context.Context, url string, machine *virtv1.VirtualMachine) (*admissionv1.AdmissionReview, error) {
	machine = machine.DeepCopy()
	machine.SetGroupVersionKind(virtv1.VirtualMachineGroupVersionKind)

	raw, err := json.Marshal(machine)
	if err != nil {
		return nil, fmt.Errorf("write machine: %w", err)
	}

	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: machine.Namespace, Name: machine.Name,
		Resource: metav1.GroupVersionResource{Group: virtv1.GroupVersion.Group, Version: "v1", Resource: "virtualmachines"},
		Object:   runtime.RawExtension{Raw: raw},
	}}

	if raw, err = json.Marshal(review); err != nil {
		return nil, fmt.Errorf("write review: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}

	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("post review: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()

	review = &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(answer.Body).Decode(review); err != nil {
		return nil, fmt.Errorf("read review, %s: %w", answer.Status, err)
	}

	return review, nil
}

func causes(response *admissionv1.AdmissionResponse) []string {
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
