// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Templates holds the templates of one namespace by their names.
type Templates map[string]*v1alpha1.HypervisorMachineTemplate

// Size is the machine size that a job requests by its labels. The zero Size is the pool's own size.
type Size struct {
	v1alpha1.MachineSize

	// Template that the machine is created from. Empty means one of the pool's templates.
	Template string
}

// Key returns the same string for jobs that request the same machine. It returns "" for the pool's
// own size.
func (s Size) Key() string { return SizeKey(&s.MachineSize) }

// SizeKey returns the Key of a claim's size, which may be nil.
func SizeKey(size *v1alpha1.MachineSize) string {
	if size == nil {
		return ""
	}

	return strings.Join(slices.Sorted(slices.Values(size.Labels)), ",")
}

// HasImage reports whether a claim's size, which may be nil, includes one of the images that a pool allows.
func HasImage(size *v1alpha1.MachineSize, allowed *v1alpha1.SizeLabels) bool {
	return size != nil && allowed != nil && slices.ContainsFunc(allowed.Images, func(image v1alpha1.ImageChoice) bool {
		return slices.Contains(size.Labels, sizeImage+"="+image.Name)
	})
}

// The keys of the labels with which jobs request a size.
const (
	sizeCPU    = "cpu"
	sizeMemory = "memory"
	sizeDisk   = "disk"
	sizeImage  = "image"
)

// ParseSize returns the size that the job requests. refusal says why the pool refuses the size;
// it is empty if the pool allows it. ParseSize ignores a label that all runners of the pool have,
// and a label whose key the pool does not allow. With labelMatch Any, the labels of the size include
// the job's other labels.
func (p Pool) ParseSize(job workload.Job) (size Size, refusal string) {
	size, refusal = p.parseSizeLabels(job)
	if refusal == "" {
		refusal = p.addMissingLabels(&size, job)
	}

	return size, refusal
}

// parseSizeLabels returns what ParseSize returns without labelMatch.
func (p Pool) parseSizeLabels(job workload.Job) (out Size, refusal string) {
	requested := map[string]string{}

	for _, label := range job.Labels {
		key, value, found := strings.Cut(label, "=")
		if !found || !p.isKeyAllowed(key) || slices.Contains(p.Runner.Labels, label) || requested[key] == label {
			continue
		}

		reason := p.parseLabel(&out, key, value)
		if requested[key] != "" {
			reason = fmt.Sprintf("the job requests %s twice: remove one of %s and %s", key, requested[key], label)
		}

		if refusal == "" {
			refusal = reason
		}

		requested[key] = label
		out.Labels = append(out.Labels, label)
	}

	if out.Disk != nil && refusal == "" {
		refusal = p.checkDisk(out)
	}

	return out, refusal
}

// isKeyAllowed reports whether the pool lets jobs request a size by labels with the key.
func (p Pool) isKeyAllowed(key string) bool {
	allowed := p.SizeLabels
	if allowed == nil {
		return false
	}

	switch key {
	case sizeCPU:
		return allowed.MaxCPU != nil
	case sizeMemory:
		return allowed.MaxMemory != nil
	case sizeDisk:
		return allowed.MaxDisk != nil
	case sizeImage:
		return len(allowed.Images) > 0
	default:
		return false
	}
}

// parseLabel parses one label into out. It returns the reason if the pool refuses the label.
func (p Pool) parseLabel(out *Size, key, value string) string {
	switch key {
	case sizeCPU:
		return p.parseCPU(out, value)
	case sizeMemory:
		return p.parseQuantityLabel(&out.Memory, key, value, "64Mi", p.SizeLabels.MaxMemory)
	case sizeDisk:
		return p.parseQuantityLabel(&out.Disk, key, value, "1Mi", p.SizeLabels.MaxDisk)
	default:
		return p.parseImage(out, value)
	}
}

func (p Pool) parseCPU(out *Size, value string) string {
	cores, err := strconv.ParseInt(value, 10, 32)
	if err != nil || cores < 1 || strconv.FormatInt(cores, 10) != value {
		return fmt.Sprintf("the job's label cpu=%s is not a number of cores: use for example cpu=4", value)
	}

	if maxCPU := *p.SizeLabels.MaxCPU; cores > int64(maxCPU) {
		return fmt.Sprintf("the job requests cpu=%d, and RunnerPool %s allows %d: request less, or raise sizeLabels.maxCPU",
			cores, p.Name, maxCPU)
	}

	out.CPU = new(int32(cores))

	return ""
}

func (p Pool) parseQuantityLabel(target **resource.Quantity, key, value, minimum string, maximum *resource.Quantity) string {
	requested, ok := parseQuantity(value)
	if !ok || requested.Cmp(resource.MustParse(minimum)) < 0 {
		return fmt.Sprintf("the job's label %s=%s is not a size of at minimum %s: use a number with a unit such as %[1]s=16Gi",
			key, value, minimum)
	}

	if requested.Cmp(*maximum) > 0 {
		return fmt.Sprintf("the job requests %s=%s, and RunnerPool %s allows %s: request less, or raise sizeLabels.max%s",
			key, value, p.Name, maximum, strings.ToUpper(key[:1])+key[1:])
	}

	*target = &requested

	return ""
}

// plainQuantity matches a quantity without a sign and without an exponent. apimachinery computes
// with as many digits as an exponent says, so a large exponent would be expensive. The CRDs have
// the same rule.
var plainQuantity = regexp.MustCompile(`^\d{1,15}([.]\d{1,9})?([KMGTPE]i|[mkMGTPE])?$`)

// parseQuantity parses a quantity of untrusted origin.
func parseQuantity(value string) (resource.Quantity, bool) {
	if !plainQuantity.MatchString(value) {
		return resource.Quantity{}, false
	}

	out, err := resource.ParseQuantity(value)

	return out, err == nil
}

func (p Pool) parseImage(out *Size, value string) string {
	names := make([]string, 0, len(p.SizeLabels.Images))

	for _, image := range p.SizeLabels.Images {
		if image.Name == value {
			out.Template = image.TemplateRef.Name

			return ""
		}

		names = append(names, image.Name)
	}

	return fmt.Sprintf("the job requests image=%s, and RunnerPool %s has [%s]: "+
		"request one of these images, or add the image to sizeLabels.images", value, p.Name, strings.Join(names, ", "))
}

// checkDisk returns the reason if no machine with the disk size can be created from the template,
// because the hypervisor would refuse each attempt.
func (p Pool) checkDisk(size Size) string {
	name := size.Template
	if name == "" {
		name = p.Template
	}

	template := p.Templates[name]
	if template == nil {
		return "" // the pool's condition reports the missing template
	}

	if source := template.Spec.Template.KubeVirt; source != nil && source.ContainerDisk != nil {
		return fmt.Sprintf("the job requests disk=%s, and the disk of template %s always has the size of its containerDisk: "+
			"remove the label", size.Disk, name)
	}

	var minimum resource.Quantity
	for _, source := range template.Status.Sources {
		if source.DiskBytes > minimum.Value() {
			minimum = *resource.NewQuantity(source.DiskBytes, resource.BinarySI)
		}
	}

	if size.Disk.Cmp(minimum) < 0 {
		return fmt.Sprintf("the job requests disk=%s, and the disk of template %s already has %s: request more, or remove the label",
			size.Disk, name, &minimum)
	}

	return ""
}
