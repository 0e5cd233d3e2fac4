// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// networkSecret is the Secret with the machine's network data.
type networkSecret struct {
	name   string
	data   []byte
	format netdata.Format
}

// ensureNetworkData renders the machine's network data with its addresses, and creates an immutable Secret
// with them. The name of the Secret has a digest of the data. The operator therefore does not need to read
// the Secret, and needs no permission for it.
func ensureNetworkData(ctx context.Context, s *scope) step.Result {
	if s.machine.Spec.BootstrapNetworkConfig == nil {
		return step.Done().WithReason("DHCP", "")
	}

	addresses, err := s.recordedAddresses()
	if err != nil {
		return s.stall("InvalidAddresses", err.Error())
	}

	data, format, err := kubevirt.RenderNetworkData(s.machine, addresses)
	if err != nil {
		return s.stall("InvalidNetworkData", err.Error())
	}

	sum := sha256.Sum256(data)
	s.network = networkSecret{
		name: s.machine.Name + "-network-" + hex.EncodeToString(sum[:4]), data: data, format: format,
	}

	if s.vm != nil && kubevirt.NetworkDataSecret(s.vm) == s.network.name && isRunning(s.vm) {
		return step.Done() // the guest has already read the network data
	}

	immutable := true
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.machine.Namespace, Name: s.network.name,
			Labels: map[string]string{v1alpha1.LabelMachine: s.machine.Name},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.machine, v1alpha1.GroupVersion.WithKind("KubevirtMachine")),
			},
		},
		Immutable: &immutable,
		Data:      map[string][]byte{kubevirt.NetworkDataKey: data},
	}

	if err := s.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(fmt.Errorf("create secret %s with network data: %w", secret.Name, err))
	}

	return step.Done()
}
