// Lets the kubelet's own FlexVolume plugin run each command, and prints the arguments of each as JSON.
//
//	go run . > vectors.json
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

const (
	driver = "example.org/disk"
	node   = types.NodeName("node-1")
	device = "DEVICE"
	root   = "/var/lib/kubelet"
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// record is the executable: it appends its arguments to a file, and succeeds.
func record() {
	file := must(os.OpenFile(os.Getenv("RECORD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))
	check(json.NewEncoder(file).Encode(os.Args[1:]))
	fmt.Println(`{"status": "Success", "device": "` + device + `", "attached": true}`)
}

// last returns the arguments of the last run, with the names of a node's directories.
func last(here string) []string {
	file := must(os.Open(os.Getenv("RECORD")))
	defer file.Close()
	var arguments []string
	for decoder := json.NewDecoder(file); decoder.More(); {
		arguments = nil
		check(decoder.Decode(&arguments))
	}
	for at, one := range arguments {
		if relative, err := filepath.Rel(here, one); err == nil && filepath.IsAbs(one) {
			arguments[at] = filepath.Join(root, relative)
		}
	}
	return arguments
}

func main() {
	if filepath.Base(os.Args[0]) == "disk" {
		record()
		return
	}
	here := must(os.MkdirTemp("", "flexvolume"))
	defer os.RemoveAll(here)
	check(os.Setenv("RECORD", filepath.Join(here, "record")))
	plugins := filepath.Join(here, "exec")
	check(os.MkdirAll(filepath.Join(plugins, "example.org~disk"), 0o700))
	check(os.Symlink(must(os.Executable()), filepath.Join(plugins, "example.org~disk", "disk")))

	secret := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "disk-login", Namespace: "storage"},
		Type:       driver,
		Data:       map[string][]byte{"password": []byte("hunter2"), "user": []byte("ann")},
	}
	host := volumetest.NewFakeKubeletVolumeHost(&testing.T{}, here, fake.NewSimpleClientset(secret), nil)
	prober := flexvolume.GetDynamicPluginProber(context.Background(), plugins, exec.New())
	check(prober.Init())
	events := must(prober.Probe())
	vectors := map[string][]string{"init": last(here)}
	plugin := events[0].Plugin
	check(plugin.Init(host))

	options := map[string]string{"pool": "fast", "text": `a "b" <c>`}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			FlexVolume: &v1.FlexPersistentVolumeSource{
				Driver: driver, FSType: "ext4", Options: options,
				SecretRef: &v1.SecretReference{Name: "disk-login", Namespace: "storage"},
			},
		}},
	}
	spec, readOnly := volume.NewSpecFromPersistentVolume(pv, false), volume.NewSpecFromPersistentVolume(pv, true)
	pod := func(name, uid string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(uid)},
			Spec:       v1.PodSpec{ServiceAccountName: "seller"},
		}
	}
	must(plugin.GetVolumeName(spec))
	vectors["getvolumename"] = last(here)

	attachable := plugin.(volume.AttachableVolumePlugin)
	attacher := must(attachable.NewAttacher())
	must(attacher.Attach(spec, node))
	vectors["attach"] = last(here)
	must(attacher.VolumesAreAttached([]*volume.Spec{spec}, node))
	vectors["isattached"] = last(here)
	must(attacher.WaitForAttach(spec, device, nil, time.Minute))
	vectors["waitforattach"] = last(here)
	mounter := must(plugin.(volume.DeviceMountableVolumePlugin).NewDeviceMounter())
	path := must(mounter.GetDeviceMountPath(spec))
	check(mounter.MountDevice(spec, device, path, volume.DeviceMounterArgs{}))
	vectors["mountdevice"] = last(here)

	group := int64(2000)
	for name, one := range map[string]*volume.Spec{"mount": spec, "mount-read-only": readOnly} {
		uid := map[string]string{"mount": "uid-1", "mount-read-only": "uid-2"}[name]
		m := must(plugin.NewMounter(one, pod("pod-of-"+uid, uid)))
		check(m.SetUp(volume.MounterArgs{FsGroup: &group}))
		vectors[name] = last(here)
	}
	must(plugin.(volume.ExpandableVolumePlugin).ExpandVolumeDevice(
		spec, resource.MustParse("128Mi"), resource.MustParse("64Mi")))
	vectors["expandvolume"] = last(here)
	must(plugin.(volume.NodeExpandableVolumePlugin).NodeExpand(volume.NodeResizeOptions{
		VolumeSpec: spec, DevicePath: device, DeviceMountPath: path,
		NewSize: resource.MustParse("128Mi"), OldSize: resource.MustParse("64Mi"),
	}))
	vectors["expandfs"] = last(here)

	for name, uid := range map[string]types.UID{"unmount": "uid-1", "unmount-read-only": "uid-2"} {
		check(must(plugin.NewUnmounter("pv-1", uid)).TearDown())
		vectors[name] = last(here)
	}
	host.GetMounter().(*mount.FakeMounter).MountPoints = []mount.MountPoint{{Path: path}}
	check(must(attachable.NewDeviceUnmounter()).UnmountDevice(path))
	vectors["unmountdevice"] = last(here)
	check(must(attachable.NewDetacher()).Detach("pv-1", node))
	vectors["detach"] = last(here)

	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	check(encoder.Encode(vectors))
}
