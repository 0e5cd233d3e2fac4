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
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Templates of one namespace by their names.
type Templates map[string]*v1alpha1.HypervisorMachineTemplate

// Size is a machine that a job asks for by its labels. The zero Size is the pool's own.
type Size struct {
	v1alpha1.MachineSize

	// Template that the machine is made from; empty means one of the pool's.
	Template string
}

// Key is the same for jobs whose machines are the same, and empty for the pool's own size.
func (s Size) Key() string { return SizeKey(&s.MachineSize) }

// SizeKey is the Key of a claim's size, which may be nil.
func SizeKey(size *v1alpha1.MachineSize) string {
	if size == nil {
		return ""
	}

	return strings.Join(slices.Sorted(slices.Values(size.Labels)), ",")
}

// The keys of labels that ask for a size.
const (
	sizeCPU    = "cpu"
	sizeMemory = "memory"
	sizeDisk   = "disk"
	sizeImage  = "image"
)

// Size reads what the job asks for. The text says why the pool does not let it have that, and
// is empty where it does. A label that the pool's runners have anyway asks for nothing, and
// neither does one that the pool does not let jobs ask by.
func (p Pool) Size(job workload.Job) (Size, string) {
	var (
		out     Size
		refusal string
	)

	asked := map[string]string{}

	for _, label := range job.Labels {
		key, value, found := strings.Cut(label, "=")
		if !found || !p.asks(key) || slices.Contains(p.Runner.Labels, label) || asked[key] == label {
			continue
		}

		why := p.read(&out, key, value)
		if asked[key] != "" {
			why = fmt.Sprintf("the job asks for %s twice: leave one of %s and %s out", key, asked[key], label)
		}

		if refusal == "" {
			refusal = why
		}

		asked[key] = label
		out.Labels = append(out.Labels, label)
	}

	if out.Disk != nil && refusal == "" {
		refusal = p.fitsDisk(out)
	}

	return out, refusal
}

// asks tells whether the pool lets jobs ask by labels of the key.
func (p Pool) asks(key string) bool {
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

// read reads one label, and gives why the pool does not allow it.
func (p Pool) read(out *Size, key, value string) string {
	switch key {
	case sizeCPU:
		return p.readCPU(out, value)
	case sizeMemory:
		return p.readQuantity(&out.Memory, key, value, "64Mi", p.SizeLabels.MaxMemory)
	case sizeDisk:
		return p.readQuantity(&out.Disk, key, value, "1Mi", p.SizeLabels.MaxDisk)
	default:
		return p.readImage(out, value)
	}
}

func (p Pool) readCPU(out *Size, value string) string {
	cores, err := strconv.ParseInt(value, 10, 32)
	if err != nil || cores < 1 || strconv.FormatInt(cores, 10) != value {
		return fmt.Sprintf("the job's label cpu=%s is not a number of cores: write it such as cpu=4", value)
	}

	if most := *p.SizeLabels.MaxCPU; cores > int64(most) {
		return fmt.Sprintf("the job asks for cpu=%d, and RunnerPool %s allows %d: ask for less, or raise sizeLabels.maxCPU",
			cores, p.Name, most)
	}

	out.CPU = new(int32(cores))

	return ""
}

func (p Pool) readQuantity(to **resource.Quantity, key, value, least string, most *resource.Quantity) string {
	asked, ok := quantity(value)
	if !ok || asked.Cmp(resource.MustParse(least)) < 0 {
		return fmt.Sprintf("the job's label %s=%s is not a size of at least %s: write it with a unit such as %[1]s=16Gi",
			key, value, least)
	}

	if asked.Cmp(*most) > 0 {
		return fmt.Sprintf("the job asks for %s=%s, and RunnerPool %s allows %s: ask for less, or raise sizeLabels.max%s",
			key, value, p.Name, most, strings.ToUpper(key[:1])+key[1:])
	}

	*to = &asked

	return ""
}

// plainQuantity is a quantity without a sign or an exponent: apimachinery computes with as many
// digits as an exponent says. The CRDs have the same rule.
var plainQuantity = regexp.MustCompile(`^\d{1,15}([.]\d{1,9})?([KMGTPE]i|[mkMGTPE])?$`)

// quantity reads a quantity that anybody may have written.
func quantity(value string) (resource.Quantity, bool) {
	if !plainQuantity.MatchString(value) {
		return resource.Quantity{}, false
	}

	out, err := resource.ParseQuantity(value)

	return out, err == nil
}

func (p Pool) readImage(out *Size, value string) string {
	names := make([]string, 0, len(p.SizeLabels.Images))

	for _, image := range p.SizeLabels.Images {
		if image.Name == value {
			out.Template = image.TemplateRef.Name

			return ""
		}

		names = append(names, image.Name)
	}

	return fmt.Sprintf("the job asks for image=%s, and RunnerPool %s has [%s]: ask for one of these, or add it to sizeLabels.images",
		value, p.Name, strings.Join(names, ", "))
}

// fitsDisk says why no machine with the disk can be made from the template: the hypervisor
// would refuse it each time.
func (p Pool) fitsDisk(size Size) string {
	name := size.Template
	if name == "" {
		name = p.Template
	}

	template := p.Templates[name]
	if template == nil {
		return "" // told by the pool
	}

	if source := template.Spec.Template.KubeVirt; source != nil && source.ContainerDisk != nil {
		return fmt.Sprintf("the job asks for disk=%s, and a machine of template %s has the size of its containerDisk: "+
			"leave the label out", size.Disk, name)
	}

	var least resource.Quantity
	for _, source := range template.Status.Sources {
		if source.DiskBytes > least.Value() {
			least = *resource.NewQuantity(source.DiskBytes, resource.BinarySI)
		}
	}

	if size.Disk.Cmp(least) < 0 {
		return fmt.Sprintf("the job asks for disk=%s, and the disk of template %s has %s already: ask for more, or leave the label out",
			size.Disk, name, &least)
	}

	return ""
}

// Asked are the sizes of a pool's queued jobs, in the order in which their machines should be
// made.
func Asked(jobs []v1alpha1.RunnerJob, pools []Pool, key types.NamespacedName) []Size {
	var out []Size

	Assign(jobs, pools, func(job *v1alpha1.RunnerJob, pool Pool) {
		if pool.Key() == key && job.Spec.State == v1alpha1.JobQueued {
			size, _ := pool.Size(job.Spec)
			out = append(out, size)
		}
	})

	return out
}
